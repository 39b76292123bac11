#include "formats/megatron_shard.h"

#include <algorithm>
#include <cstring>
#include <limits>
#include <string>

#include "base/check.h"
#include "base/narrow.h"
#include "formats/little_endian.h"

namespace longspan {
namespace {

// The format counts the tokens of a sequence in an i32; a longer document becomes several.
constexpr int64_t kMaxSequenceTokens = std::numeric_limits<int32_t>::max();

template <typename Stored>
std::vector<int32_t> widen(std::span<const std::byte> bytes, const std::filesystem::path& prefix,
                           int64_t document, int64_t first_position) {
  std::vector<int32_t> ids(bytes.size() / sizeof(Stored));
  for (size_t idx = 0; idx < ids.size(); ++idx) {
    Stored value;
    std::memcpy(&value, bytes.data() + idx * sizeof(Stored), sizeof(Stored));
    if (!std::in_range<int32_t>(value) || std::cmp_less(value, 0)) {
      throw UserError(text("token shard ", prefix.string(), ": document ", document, ", position ",
                           first_position + static_cast<int64_t>(idx), ": ", +value,
                           " is not a token id"));
    }
    ids[idx] = static_cast<int32_t>(value);
  }
  return ids;
}

template <typename Stored>
void append_narrowed(std::string& buffer, std::span<const int32_t> ids) {
  buffer.resize(ids.size() * sizeof(Stored));
  for (size_t idx = 0; idx < ids.size(); ++idx) {
    const auto value = static_cast<Stored>(ids[idx]);
    std::memcpy(buffer.data() + idx * sizeof(Stored), &value, sizeof(Stored));
  }
}

}  // namespace

std::filesystem::path megatron_prefix(const std::filesystem::path& path) {
  if (path.extension() != ".idx" && path.extension() != ".bin") return path;
  return path.parent_path() / path.stem();
}

std::filesystem::path with_suffix(const std::filesystem::path& prefix, const char* suffix) {
  std::filesystem::path path = prefix;
  path += suffix;
  return path;
}

MegatronShard::MegatronShard(const std::filesystem::path& path)
    : prefix_(megatron_prefix(path)),
      idx_(with_suffix(prefix_, ".idx")),
      bin_(with_suffix(prefix_, ".bin")),
      index_(idx_.bytes(), bin_.size(), prefix_.string()) {}

std::vector<int32_t> MegatronShard::tokens(int64_t document, const Range& range) const {
  const Range bytes = index_.document_bytes(document);
  const int64_t width = token_bytes(index_.token_type());
  LONGSPAN_CHECK(range.begin >= 0 && range.begin <= range.end && range.end <= bytes.size() / width,
                 "tokens ", range, " of ", bytes.size() / width);
  const std::span<const std::byte> stored =
      bin_.bytes().subspan(static_cast<size_t>(bytes.begin + range.begin * width),
                           static_cast<size_t>(range.size() * width));
  switch (index_.token_type()) {
    case TokenType::kU8:
      return widen<uint8_t>(stored, prefix_, document, range.begin);
    case TokenType::kI8:
      return widen<int8_t>(stored, prefix_, document, range.begin);
    case TokenType::kI16:
      return widen<int16_t>(stored, prefix_, document, range.begin);
    case TokenType::kI32:
      return widen<int32_t>(stored, prefix_, document, range.begin);
    case TokenType::kI64:
      return widen<int64_t>(stored, prefix_, document, range.begin);
    case TokenType::kU16:
      return widen<uint16_t>(stored, prefix_, document, range.begin);
  }
  LONGSPAN_CHECK(false, "token type ", static_cast<int>(index_.token_type()));
}

MegatronWriter::MegatronWriter(const std::filesystem::path& prefix, int64_t vocabulary_size)
    : vocabulary_size_(vocabulary_size),
      token_type_(megatron_token_type(vocabulary_size)),
      bin_(with_suffix(prefix, ".bin")),
      idx_(with_suffix(prefix, ".idx")) {
  LONGSPAN_CHECK(vocabulary_size >= 1, "vocabulary_size ", vocabulary_size);
}

void MegatronWriter::append(std::span<const int32_t> ids) {
  for (const int32_t id : ids) {
    LONGSPAN_CHECK(id >= 0 && id < vocabulary_size_, "token ", id, ", vocabulary ",
                   vocabulary_size_);
  }
  std::string buffer;
  while (!ids.empty()) {
    const auto count = std::min(ids.size(), static_cast<size_t>(kMaxSequenceTokens - open_tokens_));
    if (token_type_ == TokenType::kU16) {
      append_narrowed<uint16_t>(buffer, ids.first(count));
    } else {
      append_narrowed<int32_t>(buffer, ids.first(count));
    }
    bin_.write(buffer);
    open_tokens_ += static_cast<int64_t>(count);
    if (open_tokens_ == kMaxSequenceTokens) end_sequence();
    ids = ids.subspan(count);
  }
}

void MegatronWriter::end_sequence() {
  sequence_lengths_.push_back(narrow<int32_t>(open_tokens_));
  open_tokens_ = 0;
}

void MegatronWriter::end_document() {
  if (open_tokens_ > 0) end_sequence();
  const auto sequences = static_cast<int64_t>(sequence_lengths_.size());
  LONGSPAN_CHECK(sequences > first_sequences_.back(), "document ", documents(), " has no tokens");
  first_sequences_.push_back(sequences);
}

void MegatronWriter::seal() {
  if (is_sealed_) return;
  LONGSPAN_CHECK(first_sequences_.back() == static_cast<int64_t>(sequence_lengths_.size()) &&
                     open_tokens_ == 0,
                 "document ", documents(), " was not ended");
  bin_.seal();
  write_index();
  idx_.seal();
  is_sealed_ = true;
}

void MegatronWriter::write_index() {
  std::string bytes(kMegatronMagic);
  append_little_endian(bytes, kMegatronVersion);
  append_little_endian(bytes, static_cast<uint8_t>(token_type_));
  append_little_endian(bytes, static_cast<uint64_t>(sequence_lengths_.size()));
  append_little_endian(bytes, static_cast<uint64_t>(first_sequences_.size()));
  idx_.write(bytes);
  idx_.write(std::as_bytes(std::span(sequence_lengths_)));
  int64_t offset = 0;
  for (const int32_t length : sequence_lengths_) {
    bytes.clear();
    append_little_endian(bytes, offset);
    idx_.write(bytes);
    offset += token_bytes(token_type_) * length;
  }
  idx_.write(std::as_bytes(std::span(first_sequences_)));
}

void MegatronWriter::publish() {
  seal();
  bin_.publish();
  idx_.publish();
}

}  // namespace longspan
