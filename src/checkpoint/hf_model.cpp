#include "checkpoint/hf_model.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <unordered_set>

#include "base/check.h"
#include "checkpoint/publish_folder.h"
#include "checkpoint/stored_real.h"
#include "formats/json.h"
#include "spec/hf_config.h"
#include "spec/parameter_names.h"

namespace longspan {
namespace {

const std::string kScaleSuffix = "_scale_inv";

std::string shape_text(const std::vector<int64_t>& shape) {
  std::string out = "[";
  for (size_t i = 0; i < shape.size(); ++i) out += text(i == 0 ? "" : ", ", shape[i]);
  return out + "]";
}

// As transformers spells it.
const char* torch_dtype_name(StoredDtype dtype) {
  if (dtype == StoredDtype::kF32) return "float32";
  if (dtype == StoredDtype::kF64) return "float64";
  LONGSPAN_CHECK(dtype == StoredDtype::kBF16, "no export as ", dtype_name(dtype));
  return "bfloat16";
}

// "runs/out/" names the folder that "runs/out" does.
std::filesystem::path without_trailing_slash(const std::filesystem::path& path) {
  return path.has_filename() ? path : path.parent_path();
}

}  // namespace

HfWeights::HfWeights(const std::filesystem::path& folder, const ModelSpec& spec,
                     const std::vector<Parameter>& parameters)
    : set_(folder) {
  for (const Parameter& parameter : parameters) {
    const std::string name = find_stored_name(spec, parameter.name);
    if (name.empty()) {
      throw UserError(text(folder.string(), ": tensor '", parameter.name,
                           "' is missing; config.json describes another model than the weights"));
    }
    check_tensor(name, parameter.shape);
    stored_names_.push_back(name);
  }
  head_is_tied_ = spec.tied_embeddings && set_.contains(kHeadName);
  if (head_is_tied_) check_tensor(kHeadName, parameters.front().shape);
  check_names(spec);
}

std::string HfWeights::find_stored_name(const ModelSpec& spec, const std::string& name) const {
  if (set_.contains(name)) return name;
  const std::string other = other_name(spec, name);
  return set_.contains(other) ? other : "";
}

std::string HfWeights::file_of(const std::string& name) const {
  for (const SafetensorsFile& file : set_.files()) {
    if (file.contains(name)) return file.path().string();
  }
  return "";
}

void HfWeights::check_tensor(const std::string& name, const std::vector<int64_t>& shape) const {
  const TensorDescription& stored = set_.tensor(name).description;
  if (stored.shape != shape) {
    throw UserError(text(file_of(name), ": tensor '", name, "' has the shape ",
                         shape_text(stored.shape), ", expected ", shape_text(shape),
                         " from config.json"));
  }
  if (stored.dtype == StoredDtype::kF8E4M3) return check_scales(stored);
  if (!is_real_dtype(stored.dtype)) {
    throw UserError(text(file_of(name), ": tensor '", name, "' is ", dtype_name(stored.dtype),
                         "; weights may be F32, F64, BF16, F16, or F8_E4M3 with scales of "
                         "128 x 128 blocks: convert it first"));
  }
}

void HfWeights::check_scales(const TensorDescription& matrix) const {
  const std::string name = matrix.name + kScaleSuffix;
  const std::vector<int64_t> shape = block_scale_shape(matrix.shape);
  if (set_.contains(name) && matrix.shape.size() == 2) {
    const TensorDescription& scales = set_.tensor(name).description;
    if (scales.dtype == StoredDtype::kF32 && scales.shape == shape) return;
  }
  throw UserError(text(file_of(matrix.name), ": tensor '", matrix.name,
                       "' is F8_E4M3: it must be a matrix, with the scales of its blocks in '",
                       name, "', F32 of the shape ", shape_text(shape),
                       "; take the weights in another type"));
}

void HfWeights::check_names(const ModelSpec& spec) const {
  std::unordered_set<std::string> known(stored_names_.begin(), stored_names_.end());
  for (const std::string& name : stored_names_) {
    if (set_.tensor(name).description.dtype == StoredDtype::kF8E4M3) {
      known.insert(name + kScaleSuffix);
    }
  }
  if (head_is_tied_) known.insert(kHeadName);
  for (const std::string& name : set_.names()) {
    if (known.contains(name) || is_carried_tensor(spec, name)) continue;
    throw UserError(text(file_of(name), ": tensor '", name,
                         "' belongs to no parameter of the model that config.json describes; "
                         "remove it, or correct config.json"));
  }
}

void HfWeights::read(int64_t parameter, Range elements, const RealSpan& destination) const {
  const std::string& name = stored_names_.at(static_cast<size_t>(parameter));
  const TensorView stored = set_.tensor(name);
  if (stored.description.dtype == StoredDtype::kF8E4M3) {
    copy_scaled_elements(stored, set_.tensor(name + kScaleSuffix), elements, destination);
  } else {
    copy_elements(stored, elements, destination);
  }
  check_finite(name, elements, destination);
  constexpr int64_t kEmbedding = 0;
  if (head_is_tied_ && parameter == kEmbedding) check_tied_head(name, elements, destination);
}

void HfWeights::check_finite(const std::string& name, Range elements,
                             const RealSpan& values) const {
  std::visit(
      [&](auto copied) {
        const auto bad = std::find_if(copied.begin(), copied.end(),
                                      [](auto value) { return !std::isfinite(value); });
        if (bad == copied.end()) return;
        const char* dtype = sizeof(*bad) == sizeof(float) ? "float32" : "float64";
        throw UserError(text(file_of(name), ": tensor '", name, "' is ", *bad, " as ", dtype,
                             " at element ", elements.begin + (bad - copied.begin()),
                             "; weights must be finite: take other weights, or mend these"));
      },
      values);
}

void HfWeights::check_tied_head(const std::string& embedding, Range elements,
                                const RealSpan& values_of_embedding) const {
  std::visit(
      [&](auto values) {
        std::vector<std::remove_cvref_t<decltype(values[0])>> head(values.size());
        copy_elements(set_.tensor(kHeadName), elements, std::span(head));
        if (std::memcmp(head.data(), values.data(), values.size_bytes()) == 0) return;
        throw UserError(text(file_of(kHeadName), ": tensor '", kHeadName, "' differs from '",
                             embedding,
                             "', but config.json says tie_word_embeddings; set it to false, or "
                             "remove the tensor"));
      },
      values_of_embedding);
}

std::vector<std::string> carried_tensors(const std::filesystem::path& folder,
                                         const ModelSpec& spec) {
  std::vector<std::string> carried;
  if (!has_carried_tensors(spec.family) || !has_weights(folder)) return carried;
  const SafetensorsSet set(folder);
  for (const std::string& name : set.names()) {
    if (is_carried_tensor(spec, name)) carried.push_back(name);
  }
  return carried;
}

std::vector<std::filesystem::path> hf_companion_files(const std::filesystem::path& model_folder) {
  std::vector<std::filesystem::path> found;
  for (const char* name :
       {"generation_config.json", "tokenizer.json", "tokenizer_config.json", "tokenizer.model",
        "special_tokens_map.json", "added_tokens.json", "vocab.json", "merges.txt",
        "chat_template.jinja", "chat_template.json"}) {
    const std::filesystem::path path = model_folder / name;
    if (std::filesystem::is_regular_file(path)) found.push_back(path);
  }
  return found;
}

HfModelWriter::HfModelWriter(const std::filesystem::path& to, const ModelSpec& spec,
                             const HfExportOptions& options)
    : to_(without_trailing_slash(to)),
      table_(spec, options.expert_group),
      config_text_(hf_config_text(spec, torch_dtype_name(options.dtype))),
      options_(options) {
  partial_ = to_;
  partial_ += ".partial";
  std::error_code ignored;
  if (std::filesystem::exists(to_, ignored) && !std::filesystem::is_empty(to_, ignored)) {
    throw UserError(
        text(to_.string(), " is there already; remove it or choose another folder to export to"));
  }
  std::vector<TensorDescription> tensors;
  for (const Parameter& parameter : table_.parameters()) {
    tensors.push_back({parameter.name, dtype_of(parameter), parameter.shape});
  }
  if (!options.carried_from.empty() && has_carried_tensors(spec.family)) {
    carried_.emplace(options.carried_from);
    carried_names_ = carried_tensors(options.carried_from, spec);
    for (const std::string& name : carried_names_) {
      tensors.push_back(carried_->tensor(name).description);
    }
  }
  remove_folder(partial_);  // of an export that was killed
  make_folder(partial_);
  tensors_.emplace(partial_, tensors, SafetensorsMetadata{{"format", "pt"}},
                   options.max_shard_bytes);
}

HfModelWriter::~HfModelWriter() {
  if (finished_) return;
  tensors_.reset();
  std::error_code ignored;
  std::filesystem::remove_all(partial_, ignored);
}

StoredDtype HfModelWriter::dtype_of(const Parameter& parameter) const {
  const bool widened = parameter.keep_float32 && options_.dtype == StoredDtype::kBF16;
  return widened ? StoredDtype::kF32 : options_.dtype;
}

void HfModelWriter::write_carried() {
  for (const std::string& name : carried_names_) {
    tensors_->write(name, carried_->tensor(name).bytes);
  }
}

void HfModelWriter::write(int64_t parameter, const RealSpan& values) {
  const Parameter& written = table_.parameters().at(static_cast<size_t>(parameter));
  LONGSPAN_CHECK(element_count(values) == written.elements(), written.name, " has ",
                 written.elements(), " elements, got ", element_count(values));
  constexpr int64_t kPieceElements = int64_t{1} << 20;  // bounds the converted copy
  std::string bytes;
  for (int64_t begin = 0; begin < written.elements(); begin += kPieceElements) {
    const int64_t end = std::min(begin + kPieceElements, written.elements());
    bytes.clear();
    append_elements(sub_span(values, {begin, end}), dtype_of(written), bytes);
    tensors_->write(written.name, std::as_bytes(std::span(bytes)));
  }
}

void HfModelWriter::finish() {
  write_carried();
  tensors_->finish();
  write_text_atomic(partial_ / "config.json", config_text_);
  for (const auto& companion : options_.companions) {
    write_text_atomic(partial_ / companion.filename(), read_text(companion));
  }
  publish_folder(partial_, to_);
  finished_ = true;
}

}  // namespace longspan
