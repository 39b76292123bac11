#include "formats/megatron_index.h"

#include <utility>

#include "base/check.h"
#include "formats/little_endian.h"

namespace longspan {
namespace {

constexpr int64_t kHeaderBytes = 34;
constexpr int64_t kVersionOffset = 9;
constexpr int64_t kTypeOffset = 17;
constexpr int64_t kSequencesOffset = 18;
constexpr int64_t kDocumentsOffset = 26;
constexpr int64_t kSequenceBytes = 12;  // i32 length and i64 offset
constexpr int64_t kSmallVocabulary = 65500;

}  // namespace

int64_t token_bytes(TokenType type) {
  switch (type) {
    case TokenType::kU8:
    case TokenType::kI8:
      return 1;
    case TokenType::kI16:
    case TokenType::kU16:
      return 2;
    case TokenType::kI32:
      return 4;
    case TokenType::kI64:
      return 8;
  }
  LONGSPAN_CHECK(false, "token type ", static_cast<int>(type));
}

TokenType megatron_token_type(int64_t vocabulary_size) {
  return vocabulary_size < kSmallVocabulary ? TokenType::kU16 : TokenType::kI32;
}

MegatronIndex::MegatronIndex(std::span<const std::byte> index, int64_t bin_bytes,
                             std::string origin)
    : index_(index), bin_bytes_(bin_bytes), origin_(std::move(origin)) {
  check_header();
  check_ends();
}

void MegatronIndex::check_header() {
  const auto file_bytes = static_cast<int64_t>(index_.size());
  if (file_bytes < kHeaderBytes) {
    fail(text("the .idx has ", file_bytes, " bytes, its header alone takes 34: truncated"));
  }
  const std::string_view magic(reinterpret_cast<const char*>(index_.data()), kMegatronMagic.size());
  if (magic != kMegatronMagic) {
    fail("the .idx does not begin with MMIDIDX: not a Megatron index of the current kind");
  }
  const auto version = load_little_endian<uint64_t>(index_, kVersionOffset);
  if (version != kMegatronVersion) fail(text("index version ", version, ", only 1 is known"));

  const auto type = load_little_endian<uint8_t>(index_, kTypeOffset);
  if (type == 6 || type == 7) fail("the shard holds floating-point numbers, not token ids");
  if (type < 1 || type > 8) fail(text("token type ", int{type}, " is unknown"));
  token_type_ = static_cast<TokenType>(type);

  // Compared before anything is multiplied: the counts are not to be trusted.
  const auto sequences = load_little_endian<uint64_t>(index_, kSequencesOffset);
  const auto boundaries = load_little_endian<uint64_t>(index_, kDocumentsOffset);
  const int64_t array_bytes = file_bytes - kHeaderBytes;
  if (sequences > static_cast<uint64_t>(array_bytes / kSequenceBytes) ||
      boundaries > static_cast<uint64_t>(array_bytes / 8)) {
    fail(text("the .idx has ", file_bytes, " bytes, too few for ", sequences, " sequences and ",
              boundaries, " document borders: truncated"));
  }
  if (boundaries == 0) fail("the .idx lists no document border; there must be documents + 1");
  sequences_ = static_cast<int64_t>(sequences);
  documents_ = static_cast<int64_t>(boundaries) - 1;

  const int64_t plain_bytes = kSequenceBytes * sequences_ + 8 * (documents_ + 1);
  has_modes_ = sequences_ > 0 && array_bytes == plain_bytes + sequences_;
  if (array_bytes != plain_bytes && !has_modes_) {
    fail(text("the .idx has ", file_bytes, " bytes, ", kHeaderBytes + plain_bytes,
              " follow from its header: truncated or damaged"));
  }
}

void MegatronIndex::check_ends() const {
  if (first_sequence(0) != 0) fail("the first document does not start at sequence 0");
  if (first_sequence(documents_) != sequences_) {
    fail(text("the last document ends at sequence ", first_sequence(documents_), " of ",
              sequences_));
  }
  if (sequence_offset(0) != 0) {
    fail(sequences_ == 0 ? text("there are no sequences, but .bin has ", bin_bytes_, " bytes")
                         : "the first sequence does not start at byte 0 of .bin");
  }
  if (sequences_ == 0) return;
  const int64_t last = sequences_ - 1;
  int64_t end = 0;
  if (__builtin_add_overflow(sequence_offset(last),
                             token_bytes(token_type_) * sequence_length(last), &end) ||
      end != bin_bytes_) {
    fail(text("the last sequence ends at byte ", end, " of .bin, which has ", bin_bytes_,
              " bytes: .bin is truncated, or belongs to another .idx"));
  }
}

Range MegatronIndex::document_bytes(int64_t document) const {
  LONGSPAN_CHECK(document >= 0 && document < documents_, "document ", document, " of ", documents_);
  const Range rows{first_sequence(document), first_sequence(document + 1)};
  if (rows.begin < 0 || rows.begin > rows.end || rows.end > sequences_) {
    fail(text("document ", document, " has the sequences ", rows, " of ", sequences_));
  }
  const Range bytes{sequence_offset(rows.begin), sequence_offset(rows.end)};
  if (bytes.begin < 0 || bytes.begin > bytes.end || bytes.end > bin_bytes_) {
    fail(text("document ", document, " has the bytes ", bytes, " of .bin, which has ", bin_bytes_));
  }
  int64_t offset = bytes.begin;
  for (int64_t row = rows.begin; row < rows.end; ++row) {
    const int32_t length = sequence_length(row);
    if (length < 0) fail(text("sequence ", row, " has ", length, " tokens"));
    if (has_modes_ && sequence_mode(row) != 0) {
      fail(text("sequence ", row, " has mode ", int{sequence_mode(row)},
                ": multimodal shards are not supported"));
    }
    // No overflow: the offset was at most bin_bytes before the largest step of 2^34 bytes.
    offset += token_bytes(token_type_) * length;
    if (offset != sequence_offset(row + 1)) {
      fail(text("sequence ", row, " of ", length, " tokens ends at byte ", offset,
                ", but what follows starts at byte ", sequence_offset(row + 1)));
    }
  }
  return bytes;
}

void MegatronIndex::check_all() const {
  for (int64_t document = 0; document < documents_; ++document) document_bytes(document);
}

int32_t MegatronIndex::sequence_length(int64_t sequence) const {
  return load_little_endian<int32_t>(index_, kHeaderBytes + 4 * sequence);
}

int64_t MegatronIndex::sequence_offset(int64_t sequence) const {
  if (sequence == sequences_) return bin_bytes_;
  return load_little_endian<int64_t>(index_, kHeaderBytes + 4 * sequences_ + 8 * sequence);
}

int64_t MegatronIndex::first_sequence(int64_t document) const {
  return load_little_endian<int64_t>(index_,
                                     kHeaderBytes + kSequenceBytes * sequences_ + 8 * document);
}

int8_t MegatronIndex::sequence_mode(int64_t sequence) const {
  return load_little_endian<int8_t>(
      index_, kHeaderBytes + kSequenceBytes * sequences_ + 8 * (documents_ + 1) + sequence);
}

void MegatronIndex::fail(const std::string& what) const {
  throw UserError(text("token shard ", origin_, ": ", what));
}

}  // namespace longspan
