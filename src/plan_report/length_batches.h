// The batches of document lengths that a plan is made for.
//
//   const auto batches = file_batches("lengths.txt", grid, 1);
//   BatchSource source = stream_batches("pretrain:512K", {.servers = 32, .tokens_each = 131072},
//   4); for (int64_t idx = 0; idx < source.count; ++idx) plan(source.next());   // made one by one
//
// A batch fills the grid, servers x tokens each, with documents in their order. Streams cut their
// documents at pack ends and fill every batch to the last token. Files hold whole documents: a
// batch ends where the next document does not fit any more; a document longer than the grid, and
// documents left over after the last batch, are a UserError. Any thread, one at a time for a
// source.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "data/packer.h"

namespace longspan {

struct TokenGrid {
  int64_t servers = 1;
  int64_t tokens_each = 1;

  int64_t tokens() const { return servers * tokens_each; }
};

struct LengthBatch {
  std::vector<int64_t> lengths;
  // Line positions at which packs of tokens_each begin, and the line's end; empty where packs and
  // servers differ in number.
  std::vector<int64_t> pack_borders = {};
};

// Batches that are made when they are asked for, in order: only one need be in memory.
struct BatchSource {
  int64_t count = 0;
  std::function<LengthBatch()> next = {};
};

BatchSource in_order(std::vector<LengthBatch> batches);

// UserError that names the nearest stream if there is none of this name.
BatchSource stream_batches(const std::string& stream, const TokenGrid& grid, int64_t count,
                           uint64_t seed);
std::vector<LengthBatch> file_batches(const std::filesystem::path& path, const TokenGrid& grid,
                                      int64_t count);

// The next micro-batches of a run.
BatchSource packed_batches(std::shared_ptr<Packer> packer, int64_t count);

// "131072", "128K", "1M": K, M and G are powers of 1024. UserError that begins with `option`.
int64_t parse_token_count(const std::string& word, const std::string& option);

}  // namespace longspan
