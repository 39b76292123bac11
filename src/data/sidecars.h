// What a Megatron shard cannot hold: loss weights and document names, in files beside x.bin, x.idx.
//
// x.weights (only where some weight is not 1), little-endian:
//   8 bytes "LSWEIGHT"; u64 version 1; u64 documents D; u64 runs R; u64 bytes of x.bin
//   u64[D + 1]  first run of each document, and R
//   i64[R], i64[R], f32[R]  begin and end (tokens of the document, half-open) and weight of each
//   run Tokens outside every run weigh 1. Runs of a document are sorted, disjoint and not empty.
// x.names, little-endian:
//   8 bytes "LSNAMES\0"; u64 version 1; u64 documents D; u64 bytes of x.bin
//   u64[D + 1]  first byte of each name in what follows, and its size;  the names in UTF-8
//
//   WeightSidecar weights("shards/x.weights", shard.documents(), shard.bin_bytes());
//   std::vector<float> of_part = weights.read(7, {100, 200}, length);     // empty: all 1
//
// The size of x.bin ties a sidecar to its shard: one left over from an older shard is a UserError.
// Opening takes the same time for any number of documents; what belongs to one is checked when it
// is read. Readers are immutable (any thread); a writer belongs to one thread.
#pragma once

#include <cstdint>
#include <filesystem>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/range.h"
#include "formats/atomic_file.h"
#include "formats/mapped_file.h"

namespace longspan {

class WeightSidecar {
 public:
  WeightSidecar(const std::filesystem::path& path, int64_t documents, int64_t bin_bytes);

  // Weights of the tokens `range` of a document of `length` tokens; empty if all are 1.
  std::vector<float> read(int64_t document, const Range& range, int64_t length) const;
  const std::filesystem::path& path() const { return file_.path(); }

 private:
  struct Run {
    Range tokens;
    float weight = 1;
  };
  uint64_t first_run(int64_t document) const;
  Run run(int64_t position) const;

  MappedFile file_;
  int64_t documents_ = 0;
  int64_t runs_ = 0;
};

class NameSidecar {
 public:
  NameSidecar(const std::filesystem::path& path, int64_t documents, int64_t bin_bytes);

  std::string_view name(int64_t document) const;
  const std::filesystem::path& path() const { return file_.path(); }

 private:
  uint64_t first_byte(int64_t document) const;

  MappedFile file_;
  int64_t documents_ = 0;
  int64_t text_bytes_ = 0;
};

// Collects weights and names while a shard is written; both files are written by seal().
class SidecarWriter {
 public:
  explicit SidecarWriter(const std::filesystem::path& prefix);

  // Weights of the next tokens of the open document; empty for `tokens` weights of 1.
  void append_weights(std::span<const float> weights, int64_t tokens);
  void end_document(std::string_view name);
  void seal(int64_t bin_bytes);
  // Renames what was written; removes an older x.weights where this shard needs none.
  void publish();

  bool has_weights() const { return !run_weights_.empty(); }

 private:
  int64_t documents() const { return static_cast<int64_t>(first_bytes_.size()) - 1; }
  void write_weights(AtomicFile& file, int64_t bin_bytes) const;
  void write_names(AtomicFile& file, int64_t bin_bytes) const;

  std::filesystem::path prefix_;
  int64_t open_tokens_ = 0;  // of the open document
  std::vector<uint64_t> first_runs_{0};
  std::vector<int64_t> run_begins_;
  std::vector<int64_t> run_ends_;
  std::vector<float> run_weights_;
  std::vector<uint64_t> first_bytes_{0};
  std::string names_;
  std::vector<AtomicFile> sealed_;
};

}  // namespace longspan
