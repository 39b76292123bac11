#include "plan_report/length_batches.h"

#include <algorithm>
#include <charconv>
#include <utility>

#include "base/error.h"
#include "base/nearest_name.h"
#include "data/length_stream.h"
#include "data/lengths_file.h"

namespace longspan {
namespace {

void check_stream_name(const std::string& stream) {
  const std::string name = stream.substr(0, stream.find(':'));
  const std::vector<std::string> names = length_stream_names();
  if (std::find(names.begin(), names.end(), name) != names.end()) return;
  throw UserError(text("--stream ", stream, ": unknown stream \"", name, "\"; did you mean \"",
                       nearest_name(name, names), "\"? Write NAME:LEN, as in pretrain:512K"));
}

// Each multiple of tokens_each is a document border: packs of that size, one for each server.
std::vector<int64_t> find_packs(const std::vector<int64_t>& lengths, const TokenGrid& grid) {
  std::vector<int64_t> borders = {0};
  int64_t at = 0;
  for (const int64_t length : lengths) {
    at += length;
    if (at == borders.back() + grid.tokens_each) borders.push_back(at);
  }
  const bool whole = borders.back() == at && std::ssize(borders) == grid.servers + 1;
  return whole ? borders : std::vector<int64_t>();
}

std::string grid_text(const TokenGrid& grid) {
  return text(grid.tokens(), " tokens, ", grid.servers, " servers x ", grid.tokens_each);
}

}  // namespace

BatchSource in_order(std::vector<LengthBatch> batches) {
  const auto count = static_cast<int64_t>(batches.size());
  return {count,
          [batches = std::move(batches), idx = size_t{0}]() mutable { return batches.at(idx++); }};
}

BatchSource stream_batches(const std::string& stream, const TokenGrid& grid, int64_t count,
                           uint64_t seed) {
  check_stream_name(stream);
  const auto lengths = std::make_shared<LengthStream>(stream, seed);
  return {count, [lengths, grid] {
            LengthBatch batch{.lengths = lengths->next_tokens(grid.tokens())};
            if (lengths->pack_tokens() == grid.tokens_each) {
              batch.pack_borders = find_packs(batch.lengths, grid);
            }
            return batch;
          }};
}

std::vector<LengthBatch> file_batches(const std::filesystem::path& path, const TokenGrid& grid,
                                      int64_t count) {
  const std::vector<int64_t> lengths = read_lengths(path);
  std::vector<LengthBatch> batches;
  int64_t room = 0;
  int64_t left_over = 0;
  for (size_t idx = 0; idx < lengths.size(); ++idx) {
    const int64_t length = lengths[idx];
    if (length > grid.tokens()) {
      throw UserError(text(path.string(), ":", idx + 1, ": a document of ", length,
                           " tokens does not fit the grid of ", grid_text(grid),
                           "; give more --servers or more --tokens-per-rank"));
    }
    if (left_over == 0 && (batches.empty() || length > room)) {
      if (std::ssize(batches) < count) {
        batches.emplace_back();
        room = grid.tokens();
      } else {
        room = 0;
      }
    }
    if (left_over > 0 || length > room) {
      left_over += length;
      continue;
    }
    batches.back().lengths.push_back(length);
    room -= length;
  }
  if (left_over > 0) {
    throw UserError(text(path.string(), ": holds ", left_over, " tokens more than ", count,
                         count == 1 ? " batch" : " batches", " of ", grid_text(grid),
                         " can take; give more --batches, --servers or --tokens-per-rank"));
  }
  for (LengthBatch& batch : batches) batch.pack_borders = find_packs(batch.lengths, grid);
  return batches;
}

BatchSource packed_batches(std::shared_ptr<Packer> packer, int64_t count) {
  return {count, [packer = std::move(packer)] {
            LengthBatch batch;
            for (const DocumentPiece& piece : packer->next().pieces) {
              batch.lengths.push_back(piece.range.size());
            }
            return batch;
          }};
}

int64_t parse_token_count(const std::string& word, const std::string& option) {
  int64_t value = 0;
  const char* const end = word.data() + word.size();
  const auto [after, error] = std::from_chars(word.data(), end, value);
  int64_t scale = 1;
  const char* rest = after;
  if (error == std::errc() && rest != end) {
    const std::string suffixes = "KMG";
    const size_t found = suffixes.find(*rest);
    if (found != std::string::npos) {
      scale = int64_t{1} << (10 * (found + 1));
      ++rest;
    }
  }
  constexpr int64_t kMostTokens = int64_t{1} << 42;
  if (error != std::errc() || rest != end || value < 1 || value > kMostTokens / scale) {
    throw UserError(
        text(option, " ", word, ": expected a number of tokens of at least 1, as 131072 or 128K"));
  }
  return value * scale;
}

}  // namespace longspan
