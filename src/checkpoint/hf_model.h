// Model folders in Hugging Face form: weights read slice by slice, and written tensor by tensor.
//
//   const HfWeights weights("models/tiny", spec, table.parameters());  // checks names, shapes,
//   dtypes weights.read(id, {begin, end}, destination);     // this rank's slice, as float or
//   double
//
//   HfModelWriter writer("out", spec, options);      // the folder appears whole, at finish()
//   for (id ...) writer.write(id, whole_parameter);  // in the order of the parameter table
//   writer.finish();
//
// Reading maps the files and touches only the slices asked for; F32, F64, BF16 and F16 are
// accepted, and F8_E4M3 with scales of 128 x 128 blocks in the tensor `<name>_scale_inv`. Names are
// strict: a missing, unexpected or misshapen tensor is a UserError that names tensor and file, and
// so is a value that is not finite. A tied head that is stored all the same is accepted if it
// equals the embedding; each slice is compared when the embedding is read.
//
// Tensors of parts that are not trained here (is_carried_tensor) pass from the folder that a run
// began with into its export, bit for bit.
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
  HfWeights(const std::filesystem::path& folder, const ModelSpec& spec,
            const std::vector<Parameter>& parameters);

  void read(int64_t parameter, Range elements, const RealSpan& destination) const;

 private:
  std::string find_stored_name(const ModelSpec& spec, const std::string& name) const;
  void check_tensor(const std::string& name, const std::vector<int64_t>& shape) const;
  void check_scales(const TensorDescription& matrix) const;
  void check_names(const ModelSpec& spec) const;
  std::string file_of(const std::string& name) const;
  void check_finite(const std::string& name, Range elements, const RealSpan& values) const;
  void check_tied_head(const std::string& embedding, Range elements, const RealSpan& values) const;

  SafetensorsSet set_;
  std::vector<std::string> stored_names_;  // of the parameters, in their order
  bool head_is_tied_ = false;              // and stored all the same
};

struct HfExportOptions {
  StoredDtype dtype = StoredDtype::kF32;  // F32, BF16 or F64
  int64_t max_shard_bytes = 5'000'000'000;
  // Of the table that the parameter ids are of; it decides the order of the tensors.
  int64_t expert_group = 1;
  // Model folder whose tensors of untrained parts go into the export, unchanged; empty: none do.
  std::filesystem::path carried_from;
  // Files whose copies go beside the weights: tokenizer, generation settings.
  std::vector<std::filesystem::path> companions;
};

// Names of the tensors in a model folder that are carried.
std::vector<std::string> carried_tensors(const std::filesystem::path& folder,
                                         const ModelSpec& spec);

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
  StoredDtype dtype_of(const Parameter& parameter) const;
  void write_carried();

  std::filesystem::path to_;
  std::filesystem::path partial_;
  ParameterTable table_;
  std::string config_text_;
  HfExportOptions options_;
  std::optional<SafetensorsSet> carried_;
  std::vector<std::string> carried_names_;
  std::optional<SafetensorsFolderWriter> tensors_;
  bool finished_ = false;
};

}  // namespace longspan
