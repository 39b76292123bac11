#include "checkpoint/export_checkpoint.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <string>

#include "formats/json.h"
#include "spec/hf_config.h"
#include "spec/parameter_table.h"

namespace longspan {
namespace {

const std::filesystem::path kModelFolder = "model";
constexpr const char* kCarriedFile = "carried.json";

// One whole parameter, in the float type of the checkpoint.
template <typename Real>
void export_parameters(SavedState& saved, const std::vector<Parameter>& parameters,
                       HfModelWriter& writer) {
  std::vector<Real> values;
  for (size_t id = 0; id < parameters.size(); ++id) {
    const int64_t elements = parameters[id].elements();
    values.resize(static_cast<size_t>(elements));
    saved.read_parameter(parameters[id].name, "weights", {0, elements}, std::span(values));
    writer.write(static_cast<int64_t>(id), std::span(values));
  }
}

// The folder that a checkpoint names for tensors of untrained parts; empty if it names none.
std::filesystem::path saved_carried_folder(const std::filesystem::path& step_folder) {
  const auto file = step_folder / kModelFolder / kCarriedFile;
  if (!std::filesystem::exists(file)) return {};
  const Json record = read_json(file);
  if (!record.is_object() || !record.contains("folder") || !record["folder"].is_string()) {
    throw UserError(text(file.string(), ": it must name a folder; the file was changed"));
  }
  const std::filesystem::path folder = record["folder"].get<std::string>();
  if (has_weights(folder)) return folder;
  throw UserError(text(folder.string(),
                       ": the run began with the weights in this folder, and the "
                       "export takes the parts of the model from there that are "
                       "not trained, but it holds none now; put it back, or "
                       "name the folder with --carried-from"));
}

}  // namespace

std::vector<AttachedFile> model_files(const ModelSpec& spec,
                                      const std::filesystem::path& model_folder,
                                      const std::filesystem::path& weights_folder) {
  const std::string dtype = spec.weight_dtype.empty() ? "float32" : spec.weight_dtype;
  std::vector<AttachedFile> files = {{kModelFolder / "config.json", hf_config_text(spec, dtype)}};
  if (!weights_folder.empty() && !carried_tensors(weights_folder, spec).empty()) {
    const Json record = {{"folder", std::filesystem::absolute(weights_folder).string()}};
    files.push_back({kModelFolder / kCarriedFile, record.dump(2) + "\n"});
  }
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
  options.expert_group = 1;  // the order of the file, whatever group trained
  if (options.carried_from.empty()) options.carried_from = saved_carried_folder(step_folder);
  const ParameterTable table(spec, options.expert_group);
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
