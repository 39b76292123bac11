// Model folders in Hugging Face form: weights read slice by slice, and written tensor by tensor.
//
//   const HfWeights weights("models/tiny", table.parameters());  // checks names, shapes, dtypes
//   weights.read(id, {begin, end}, destination);     // this rank's slice, as float or double
//
//   HfModelWriter writer("out", spec, options);      // the folder appears whole, at finish()
//   for (id ...) writer.write(id, whole_parameter);  // in the order of the parameter table
//   writer.finish();
//
// Reading maps the files and touches only the slices asked for; F32, F64, BF16 and F16 are
// accepted. Names are strict: a missing, unexpected or misshapen tensor is a UserError that names
// tensor and file, and so is a value that is not finite. A tied head that is stored all the same is
// accepted if it equals the embedding; each slice is compared when the embedding is read.
//
// HfWeights is immutable: any thread. A writer belongs to one thread.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "base/range.h"
#include "base/real_span.h"
#include "formats/safetensors.h"
#include "formats/safetensors_writer.h"
#include "spec/model_spec.h"
#include "spec/parameter_table.h"

namespace longspan {

class HfWeights {
 public:
  HfWeights(const std::filesystem::path& folder, const std::vector<Parameter>& parameters);

  void read(int64_t parameter, Range elements, const RealSpan& destination) const;

 private:
  void check_tensor(const Parameter& parameter) const;
  void check_names() const;
  std::string file_of(const std::string& name) const;
  void check_finite(const std::string& name, Range elements, const RealSpan& values) const;
  void check_tied_head(Range elements, const RealSpan& embedding) const;

  SafetensorsSet set_;
  std::vector<Parameter> parameters_;
};

struct HfExportOptions {
  StoredDtype dtype = StoredDtype::kF32;  // F32, BF16 or F64
  int64_t max_shard_bytes = 5'000'000'000;
  // Files whose copies go beside the weights: tokenizer, generation settings.
  std::vector<std::filesystem::path> companions;
};

// Those of a model folder's files that belong beside every export and are there.
std::vector<std::filesystem::path> hf_companion_files(const std::filesystem::path& model_folder);

class HfModelWriter {
 public:
  // UserError if `to` is there already and not an empty folder.
  HfModelWriter(const std::filesystem::path& to, const ModelSpec& spec,
                const HfExportOptions& options);
  ~HfModelWriter();
  HfModelWriter(const HfModelWriter&) = delete;
  HfModelWriter& operator=(const HfModelWriter&) = delete;

  // The whole parameter; parameters come in the order of the table.
  void write(int64_t parameter, const RealSpan& values);
  void finish();

 private:
  std::filesystem::path to_;
  std::filesystem::path partial_;
  ParameterTable table_;
  std::string config_text_;
  HfExportOptions options_;
  std::optional<SafetensorsFolderWriter> tensors_;
  bool finished_ = false;
};

}  // namespace longspan
