#include "checkpoint/export_checkpoint.h"

#include <string>

#include "formats/json.h"
#include "spec/hf_config.h"
#include "spec/parameter_table.h"

namespace longspan {
namespace {

const std::filesystem::path kModelFolder = "model";

// One whole parameter, in the float type of the checkpoint.
template <typename Real>
void export_parameters(SavedState& saved, const std::vector<Parameter>& parameters,
                       HfModelWriter& writer) {
  const std::vector<ParameterRecord> records = parameter_records(parameters);
  std::vector<Real> values;
  for (size_t id = 0; id < parameters.size(); ++id) {
    const int64_t elements = parameters[id].elements();
    values.resize(static_cast<size_t>(elements));
    saved.read(state_array_name(records[id].unit, "weights"),
               {records[id].begin, records[id].begin + elements}, std::span(values));
    writer.write(static_cast<int64_t>(id), std::span(values));
  }
}

}  // namespace

std::vector<AttachedFile> model_files(const ModelSpec& spec,
                                      const std::filesystem::path& model_folder) {
  const std::string dtype = spec.weight_dtype.empty() ? "float32" : spec.weight_dtype;
  std::vector<AttachedFile> files = {{kModelFolder / "config.json", hf_config_text(spec, dtype)}};
  if (model_folder.empty()) return files;
  for (const auto& path : hf_companion_files(model_folder)) {
    files.push_back({kModelFolder / path.filename(), read_text(path)});
  }
  return files;
}

void export_checkpoint(const std::filesystem::path& step_folder, const std::filesystem::path& to,
                       HfExportOptions options) {
  SavedState saved(step_folder);
  const ModelSpec spec = load_hf_config(step_folder / kModelFolder);
  const ParameterTable table(spec);
  const std::vector<Parameter>& parameters = table.parameters();
  const bool float64 = !saved.manifest().arrays.empty() &&
                       saved.manifest().arrays.front().dtype == StoredDtype::kF64;
  saved.check_model(parameters, float64);
  for (const auto& path : hf_companion_files(step_folder / kModelFolder)) {
    options.companions.push_back(path);
  }
  HfModelWriter writer(to, spec, options);
  if (float64) {
    export_parameters<double>(saved, parameters, writer);
  } else {
    export_parameters<float>(saved, parameters, writer);
  }
  writer.finish();
}

}  // namespace longspan
