// The .idx file of a Megatron token shard: where in its .bin each document lies.
//
// Layout, little-endian, nothing aligned: "MMIDIDX\0\0"; u64 version 1; u8 token type; u64
// sequences S; u64 documents + 1; i32[S] tokens of each sequence; i64[S] byte offset of each
// sequence in .bin; i64[documents + 1] first sequence of each document; optional i8[S] modes
// (multimodal data). A document here is its sequences, one after the other: they lie that way in
// .bin.
//
//   const MegatronIndex index(idx_file.bytes(), bin_file.size(), "shards/x");
//   const Range bytes = index.document_bytes(7);
//
// Opening checks the header and the ends of the arrays and takes the same time for any number of
// documents. What belongs to one document is checked each time that document is asked for, so
// nothing invalid is ever returned; check_all() asks for all. Errors are UserErrors naming the
// shard. The index refers to `bytes`, which must outlive it. Immutable: any number of threads.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>

#include "base/range.h"

namespace longspan {

enum class TokenType : uint8_t { kU8 = 1, kI8 = 2, kI16 = 3, kI32 = 4, kI64 = 5, kU16 = 8 };

int64_t token_bytes(TokenType type);

inline constexpr std::string_view kMegatronMagic{"MMIDIDX\0\0", 9};
inline constexpr uint64_t kMegatronVersion = 1;

// What writers of the format choose: u16 below 65,500 ids, else i32.
TokenType megatron_token_type(int64_t vocabulary_size);

class MegatronIndex {
 public:
  MegatronIndex(std::span<const std::byte> index, int64_t bin_bytes, std::string origin);

  int64_t documents() const { return documents_; }
  int64_t sequences() const { return sequences_; }
  TokenType token_type() const { return token_type_; }
  // The bytes of .bin that hold the tokens of a document.
  Range document_bytes(int64_t document) const;
  // Tokens of a document; may be 0.
  int64_t document_length(int64_t document) const {
    return document_bytes(document).size() / token_bytes(token_type_);
  }
  void check_all() const;

 private:
  int32_t sequence_length(int64_t sequence) const;
  int64_t sequence_offset(int64_t sequence) const;  // of `sequences()`: the end of .bin
  int64_t first_sequence(int64_t document) const;
  int8_t sequence_mode(int64_t sequence) const;

  void check_header();
  void check_ends() const;
  [[noreturn]] void fail(const std::string& what) const;

  std::span<const std::byte> index_;
  int64_t bin_bytes_ = 0;
  std::string origin_;
  TokenType token_type_ = TokenType::kI32;
  int64_t sequences_ = 0;
  int64_t documents_ = 0;
  bool has_modes_ = false;
};

}  // namespace longspan
