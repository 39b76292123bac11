#include "data/jsonl_source.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <nlohmann/json.hpp>

#include "base/check.h"
#include "data/memory_source.h"
#include "formats/json_fault.h"

namespace longspan {
namespace {

constexpr int32_t kIgnoredLabel = -100;  // Hugging Face's mark of a token without loss
constexpr std::string_view kBlank = " \t\r";

std::string_view characters_of(std::string_view content, const Range& range) {
  return content.substr(static_cast<size_t>(range.begin), static_cast<size_t>(range.size()));
}

const nlohmann::json& array_at(const nlohmann::json& line, const char* key, size_t expected_size,
                               const std::string& where) {
  const nlohmann::json& values = line[key];
  if (!values.is_array()) throw UserError(text(where, ": '", key, "' must be a list"));
  if (values.size() != expected_size) {
    throw UserError(text(where, ": '", key, "' has ", values.size(), " entries, 'input_ids' has ",
                         expected_size));
  }
  return values;
}

std::vector<int32_t> read_token_ids(const nlohmann::json& values, const std::string& where) {
  if (!values.is_array()) throw UserError(text(where, ": 'input_ids' must be a list of integers"));
  std::vector<int32_t> ids;
  ids.reserve(values.size());
  for (const nlohmann::json& value : values) {
    if (!value.is_number_unsigned() ||
        value.get<uint64_t>() > uint64_t{std::numeric_limits<int32_t>::max()}) {
      throw UserError(
          text(where, ": input_ids[", ids.size(), "] is ", value.dump(), ", not a token id"));
    }
    ids.push_back(value.get<int32_t>());
  }
  return ids;
}

std::vector<float> read_loss_mask(const nlohmann::json& values, const std::string& where) {
  std::vector<float> weights;
  weights.reserve(values.size());
  for (const nlohmann::json& value : values) {
    const bool is_flag = value.is_boolean();
    const double weight = is_flag             ? (value.get<bool>() ? 1 : 0)
                          : value.is_number() ? value.get<double>()
                                              : -1;
    const auto stored = static_cast<float>(weight);
    if (!(weight >= 0) || !std::isfinite(stored)) {
      throw UserError(text(where, ": loss_mask[", weights.size(), "] is ", value.dump(),
                           "; a weight is a number of at least 0, or true or false"));
    }
    weights.push_back(stored);
  }
  return weights;
}

std::vector<float> read_labels(const nlohmann::json& labels, const std::vector<int32_t>& ids,
                               const std::string& where) {
  std::vector<float> weights;
  weights.reserve(ids.size());
  for (size_t idx = 0; idx < ids.size(); ++idx) {
    const bool is_ignored = labels[idx] == kIgnoredLabel;
    if (!is_ignored && labels[idx] != ids[idx]) {
      throw UserError(text(where, ": labels[", idx, "] is ", labels[idx].dump(), ", its token is ",
                           ids[idx],
                           "; labels are the tokens themselves, not "
                           "shifted, or -100 for no loss"));
    }
    weights.push_back(is_ignored ? 0.0F : 1.0F);
  }
  return weights;
}

void check_positions(const nlohmann::json& positions, const std::string& where) {
  for (size_t idx = 0; idx < positions.size(); ++idx) {
    if (positions[idx] != idx) {
      throw UserError(text(where, ": position_ids[", idx, "] is ", positions[idx].dump(),
                           "; only 0, 1, 2 ... is supported: give each document a line of its "
                           "own"));
    }
  }
}

DocumentContent read_ids(const nlohmann::json& line, const std::string& where) {
  DocumentContent content{read_token_ids(line["input_ids"], where), {}};
  const size_t size = content.tokens.size();
  if (line.contains("labels") && line.contains("loss_mask")) {
    throw UserError(text(where, ": has both 'labels' and 'loss_mask'; keep one"));
  }
  if (line.contains("loss_mask")) {
    content.weights = read_loss_mask(array_at(line, "loss_mask", size, where), where);
  }
  if (line.contains("labels")) {
    content.weights = read_labels(array_at(line, "labels", size, where), content.tokens, where);
  }
  if (line.contains("position_ids")) {
    check_positions(array_at(line, "position_ids", size, where), where);
  }
  return content;
}

DocumentContent read_text_key(const nlohmann::json& line, const std::optional<Tokenizer>& tokenizer,
                              const std::string& where) {
  for (const char* key : {"input_ids", "labels", "loss_mask", "position_ids"}) {
    if (line.contains(key)) {
      throw UserError(text(where, ": has both 'text' and '", key, "'; '", key,
                           "' needs token ids: leave 'text' out"));
    }
  }
  if (!line["text"].is_string()) throw UserError(text(where, ": 'text' must be a string"));
  if (!tokenizer) {
    throw UserError(text(where,
                         ": 'text' needs a tokenizer; set data.tokenizer to \"byte\" or "
                         "\"nucleotide\""));
  }
  return {tokenizer->encode(line["text"].get_ref<const std::string&>(), where), {}};
}

std::string read_name(const nlohmann::json& line) {
  for (const char* key : {"id", "name"}) {
    if (line.contains(key) && line[key].is_string()) return line[key].get<std::string>();
  }
  return "";
}

}  // namespace

JsonlDocument parse_jsonl_line(std::string_view source, const std::optional<Tokenizer>& tokenizer,
                               const std::string& where) {
  nlohmann::json line;
  try {
    line = nlohmann::json::parse(source);
  } catch (const nlohmann::json::exception& error) {
    const JsonFault fault = describe_json_error(error);
    throw UserError(text(where, ": ", fault.in_line()));
  }
  if (!line.is_object()) throw UserError(text(where, ": a line must be one JSON object"));
  if (line.contains("text")) return {read_text_key(line, tokenizer, where), read_name(line)};
  if (line.contains("input_ids")) return {read_ids(line, where), read_name(line)};
  throw UserError(text(where, ": neither 'text' nor 'input_ids'",
                       line.contains("messages")
                           ? "; chat messages are not supported: apply the template first"
                           : ""));
}

JsonlIndex scan_jsonl(std::string_view content, const std::optional<Tokenizer>& tokenizer,
                      const std::string& origin) {
  JsonlIndex index;
  int64_t number = 0;
  size_t begin = 0;
  while (begin < content.size()) {
    const size_t end = std::min(content.find('\n', begin), content.size());
    ++number;
    const std::string_view line = content.substr(begin, end - begin);
    if (line.find_first_not_of(kBlank) != std::string_view::npos) {
      const JsonlDocument document = parse_jsonl_line(line, tokenizer, text(origin, ":", number));
      const std::vector<int32_t>& ids = document.content.tokens;
      index.lines.push_back({{static_cast<int64_t>(begin), static_cast<int64_t>(end)},
                             number,
                             static_cast<int64_t>(ids.size())});
      for (const int32_t id : ids) {
        index.vocabulary_bound = std::max(index.vocabulary_bound, int64_t{id} + 1);
      }
    }
    begin = end + 1;
  }
  return index;
}

JsonlSource::JsonlSource(const std::filesystem::path& path,
                         const std::optional<Tokenizer>& tokenizer)
    : file_(path),
      tokenizer_(tokenizer),
      index_(scan_jsonl(file_.characters(), tokenizer, path.string())) {}

const JsonlLine& JsonlSource::at(int64_t document) const {
  LONGSPAN_CHECK(document >= 0 && document < count(), "document ", document, " of ", count());
  return index_.lines[static_cast<size_t>(document)];
}

JsonlDocument JsonlSource::parse(int64_t document) const {
  const JsonlLine& line = at(document);
  return parse_jsonl_line(characters_of(file_.characters(), line.bytes), tokenizer_,
                          text(file_.path().string(), ":", line.number));
}

std::string JsonlSource::name(int64_t document) const {
  const std::string name = parse(document).name;
  return name.empty() ? text(file_.path().string(), ":", at(document).number) : name;
}

DocumentContent JsonlSource::read(int64_t document, const Range& range, int64_t) const {
  return slice(parse(document).content, range);
}

std::vector<FileFingerprint> JsonlSource::fingerprints() const {
  return {fingerprint_file(file_.path())};
}

}  // namespace longspan
