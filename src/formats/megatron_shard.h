// A Megatron token shard, `x.bin` (token ids only) with `x.idx` (see megatron_index.h): read in
// place, and written to the byte as Megatron's own tools write it.
//
//   const MegatronShard shard("shards/x");                  // also "shards/x.idx" or
//   "shards/x.bin" std::vector<int32_t> ids = shard.tokens(7, {0, shard.length(7)});
//
//   MegatronWriter writer("shards/x", vocabulary_size);     // u16 below 65,500 ids, else i32
//   writer.append(ids);  writer.end_document();             // a document may come in pieces
//   writer.publish();      // .bin appears, then .idx
//
// A shard is complete when its .idx is there. Reading is safe from any number of threads; a writer
// belongs to one. Errors are UserErrors that name shard, document and position.
#pragma once

#include <filesystem>
#include <span>
#include <vector>

#include "formats/atomic_file.h"
#include "formats/mapped_file.h"
#include "formats/megatron_index.h"

namespace longspan {

// "x" of "x", "x.idx" or "x.bin".
std::filesystem::path megatron_prefix(const std::filesystem::path& path);
// "x.suffix" for the prefix x, which may itself contain dots.
std::filesystem::path with_suffix(const std::filesystem::path& prefix, const char* suffix);

class MegatronShard {
 public:
  explicit MegatronShard(const std::filesystem::path& path);

  const std::filesystem::path& prefix() const { return prefix_; }
  const MegatronIndex& index() const { return index_; }
  int64_t bin_bytes() const { return bin_.size(); }
  int64_t documents() const { return index_.documents(); }
  int64_t length(int64_t document) const { return index_.document_length(document); }
  // Token ids of `range` of a document; UserError for ids that are negative or above 2^31 - 1.
  std::vector<int32_t> tokens(int64_t document, const Range& range) const;

 private:
  std::filesystem::path prefix_;
  MappedFile idx_;
  MappedFile bin_;
  MegatronIndex index_;
};

class MegatronWriter {
 public:
  MegatronWriter(const std::filesystem::path& prefix, int64_t vocabulary_size);

  // Adds to the open document; ids must be in [0, vocabulary_size).
  void append(std::span<const int32_t> ids);
  void end_document();
  void seal();
  void publish();  // seals if that was not done

  int64_t documents() const { return static_cast<int64_t>(first_sequences_.size()) - 1; }
  int64_t bin_bytes() const { return bin_.bytes_written(); }

 private:
  void end_sequence();
  void write_index();

  int64_t vocabulary_size_;
  TokenType token_type_;
  AtomicFile bin_;
  AtomicFile idx_;
  std::vector<int32_t> sequence_lengths_;
  std::vector<int64_t> first_sequences_{0};
  int64_t open_tokens_ = 0;  // of the open sequence
  bool is_sealed_ = false;
};

}  // namespace longspan
