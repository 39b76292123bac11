// Turns documents of any kind into one Megatron token shard with its sidecars.
//
//   const PackedShard shard = pack_documents(*source, "shards/x", {.vocabulary_size = 257});
//
// writes shards/x.bin and x.idx, x.names, and x.weights where a loss weight is not 1. Documents are
// written as they are stored (forward strand, no rotation); empty ones are left out and counted.
// All four are written under temporary names and renamed at the end, .idx last, so that a shard is
// there whole or not at all. An existing shard is a UserError unless `overwrite` is set; its .idx
// goes first, so that at no time an old index stands beside new tokens.
//
// Memory: the index and the names, and 4 million tokens. Call it from one thread.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>

#include "data/document_source.h"

namespace longspan {

struct PackShardOptions {
  int64_t vocabulary_size = 0;  // decides between u16 and i32; larger ids are a UserError
  bool overwrite = false;
  // Called now and then with tokens done and tokens in all.
  std::function<void(int64_t done_tokens, int64_t total_tokens)> progress = {};
};

struct PackedShard {
  int64_t documents = 0;
  int64_t documents_empty = 0;
  int64_t tokens = 0;
  bool has_weights = false;
  std::filesystem::path made_folder;  // where it lies, if it was not there before
};

PackedShard pack_documents(const DocumentSource& source, const std::filesystem::path& prefix,
                           const PackShardOptions& options);

}  // namespace longspan
