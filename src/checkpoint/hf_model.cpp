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

namespace longspan {
namespace {

const std::string kHead = "lm_head.weight";
const std::string kEmbedding = "model.embed_tokens.weight";

std::string shape_text(const std::vector<int64_t>& shape) {
  std::string out = "[";
  for (size_t i = 0; i < shape.size(); ++i) out += text(i == 0 ? "" : ", ", shape[i]);
  return out + "]";
}

int64_t find_parameter(const std::vector<Parameter>& parameters, const std::string& name) {
  for (size_t i = 0; i < parameters.size(); ++i) {
    if (parameters[i].name == name) return static_cast<int64_t>(i);
  }
  return -1;
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

HfWeights::HfWeights(const std::filesystem::path& folder, const std::vector<Parameter>& parameters)
    : set_(folder), parameters_(parameters) {
  for (const Parameter& parameter : parameters_) {
    if (!set_.contains(parameter.name)) {
      throw UserError(text(folder.string(), ": tensor '", parameter.name,
                           "' is missing; config.json describes another model than the weights"));
    }
    check_tensor(parameter);
  }
  check_names();
}

std::string HfWeights::file_of(const std::string& name) const {
  for (const SafetensorsFile& file : set_.files()) {
    if (file.contains(name)) return file.path().string();
  }
  return "";
}

void HfWeights::check_tensor(const Parameter& parameter) const {
  const TensorDescription& stored = set_.tensor(parameter.name).description;
  if (stored.shape != parameter.shape) {
    throw UserError(text(file_of(parameter.name), ": tensor '", parameter.name, "' has the shape ",
                         shape_text(stored.shape), ", expected ", shape_text(parameter.shape),
                         " from config.json"));
  }
  if (!is_real_dtype(stored.dtype)) {
    throw UserError(text(file_of(parameter.name), ": tensor '", parameter.name, "' is ",
                         dtype_name(stored.dtype),
                         "; weights may be F32, F64, BF16 or F16: convert it first"));
  }
}

void HfWeights::check_names() const {
  std::unordered_set<std::string> known;
  for (const Parameter& parameter : parameters_) known.insert(parameter.name);
  for (const std::string& name : set_.names()) {
    if (known.contains(name)) continue;
    const int64_t embedding = find_parameter(parameters_, kEmbedding);
    if (name == kHead && embedding >= 0) {
      check_tensor({.name = kHead, .shape = parameters_[static_cast<size_t>(embedding)].shape});
      continue;
    }
    throw UserError(text(file_of(name), ": tensor '", name,
                         "' belongs to no parameter of the model that config.json describes; "
                         "remove it, or correct config.json"));
  }
}

void HfWeights::read(int64_t parameter, Range elements, const RealSpan& destination) const {
  const Parameter& wanted = parameters_.at(static_cast<size_t>(parameter));
  copy_elements(set_.tensor(wanted.name), elements, destination);
  check_finite(wanted.name, elements, destination);
  if (wanted.name == kEmbedding && set_.contains(kHead) && find_parameter(parameters_, kHead) < 0) {
    check_tied_head(elements, destination);
  }
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

void HfWeights::check_tied_head(Range elements, const RealSpan& embedding) const {
  std::visit(
      [&](auto values) {
        std::vector<std::remove_cvref_t<decltype(values[0])>> head(values.size());
        copy_elements(set_.tensor(kHead), elements, std::span(head));
        if (std::memcmp(head.data(), values.data(), values.size_bytes()) == 0) return;
        throw UserError(text(file_of(kHead), ": tensor '", kHead, "' differs from '", kEmbedding,
                             "', but config.json says tie_word_embeddings; set it to false, or "
                             "remove the tensor"));
      },
      embedding);
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
      table_(spec),
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
    tensors.push_back({parameter.name, options.dtype, parameter.shape});
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

void HfModelWriter::write(int64_t parameter, const RealSpan& values) {
  const Parameter& written = table_.parameters().at(static_cast<size_t>(parameter));
  LONGSPAN_CHECK(element_count(values) == written.elements(), written.name, " has ",
                 written.elements(), " elements, got ", element_count(values));
  constexpr int64_t kPieceElements = int64_t{1} << 20;  // bounds the converted copy
  std::string bytes;
  for (int64_t begin = 0; begin < written.elements(); begin += kPieceElements) {
    const int64_t end = std::min(begin + kPieceElements, written.elements());
    bytes.clear();
    append_elements(sub_span(values, {begin, end}), options_.dtype, bytes);
    tensors_->write(written.name, std::as_bytes(std::span(bytes)));
  }
}

void HfModelWriter::finish() {
  tensors_->finish();
  write_text_atomic(partial_ / "config.json", config_text_);
  for (const auto& companion : options_.companions) {
    write_text_atomic(partial_ / companion.filename(), read_text(companion));
  }
  publish_folder(partial_, to_);
  finished_ = true;
}

}  // namespace longspan
