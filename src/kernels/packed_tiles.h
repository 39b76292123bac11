// Which tiles of a launch go into one call of a library operation, and how their rows are packed.
//
//   for (const PackedTiles& call : packed_tiles(slices, {.dense = true, .split = true})) ...
//
// Dense attention (cuDNN) is nearly twice as fast as packed sequences (FlashAttention-2), but makes
// a plan for each shape that it meets, in tens of milliseconds. So it gets shapes of few sizes:
//
// - Causal squares from kDenseRowsMin rows, filled up to the next size, at most a sixteenth longer
//   or 127 rows. A causal row never sees what fills up behind it. Short squares whose size is a
//   power of two run several in a call, a power of two.
// - With `split`, tiles of many keys become full rectangles and a causal rest. The sides of
//   rectangles are powers of two; queries are filled up, keys are not, since every query would see
//   them. The rest is the square over the last keys, with filling for its first queries: those who
//   see only keys that the rectangles have.
//
// dense_shapes() lists all these shapes, for a program that plans them before its first step.
// Queries that are filling must give no gradient to keys (attention/call_rows.h). All other tiles
// are packed without gaps: the causal ones are the sequences of one call, the full ones those of
// another. Pure functions; everything counts rows, which have no bytes here.
#pragma once

#include <cstdint>
#include <vector>

#include "base/range.h"
#include "kernels/attention_tiles.h"

namespace longspan {

// Rows of one source that follow each other in a packed tensor.
struct PackedPiece {
  int32_t source = 0;
  Range rows;
  int64_t packed_begin = 0;

  int64_t packed_end() const { return packed_begin + rows.size(); }
};

// The rows of all tiles of a call, one tile after the other.
struct Packing {
  std::vector<PackedPiece> pieces;  // neighbours that touch in their source and here are one
  std::vector<int32_t> ends = {0};  // of the tiles, filling included
  int64_t rows_max = 0;             // of a tile

  int64_t rows() const { return ends.back(); }

  // A tile of `room` rows: `front` of filling, those of `range`, and filling.
  void add(int32_t source, const Range& range, int64_t room, int64_t front = 0);
};

// Packed rows that no piece holds, in order. They may hold any finite numbers: no own query sees a
// key there, and results of queries there are not read.
std::vector<Range> filling_of(const Packing& packing);

// Tiles that one call of a library operation runs.
struct PackedTiles {
  Packing queries;
  Packing keys;
  bool causal = false;
  bool dense = false;  // all tiles have as many query rows, and as many keys; causal: squares
};

struct PackingOptions {
  bool dense = false;  // with dense calls
  // With parts of tiles: rows of queries stand in several calls, results add up.
  bool split = false;
  std::vector<int32_t> whole_sources = {};  // of queries whose tiles stay whole all the same
};

// Smaller ones gain nothing from dense attention.
inline constexpr int64_t kDenseRowsMin = 1024;
inline constexpr int64_t kRectangleRowsMin = 512;
inline constexpr int64_t kRectangleKeysMin = 1024;
// A causal tile over its own rows alone is one part up to here, with `split` too.
inline constexpr int64_t kUnsplitRowsMax = 32768;

// The least size of a square that holds so many rows.
int64_t square_size(int64_t rows);

// What a dense call runs: so many tiles of one size.
struct DenseShape {
  int64_t tiles = 1;
  int64_t query_rows = 0;
  int64_t key_rows = 0;
  bool causal = false;
  auto operator<=>(const DenseShape&) const = default;
};

// The shapes of dense calls for tiles of up to `rows_max` keys, the larger ones last.
std::vector<DenseShape> dense_shapes(int64_t rows_max, bool split);

// Dense calls by size, the longest first; then all other causal tiles, then all full ones. Together
// they hold every visible pair once. Without `split`, a query row is in as many tiles as slices
// hold it.
std::vector<PackedTiles> packed_tiles(const std::vector<AttentionSlice>& slices,
                                      const PackingOptions& options);

}  // namespace longspan
