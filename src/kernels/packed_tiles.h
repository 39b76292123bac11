// Which tiles of a launch go into one call of a library operation, and how their rows are packed.
//
//   for (const PackedTiles& call : packed_tiles(slices, /*squares=*/true)) ...
//
// Causal squares from kSquareRowsMin rows are for dense attention (cuDNN), which is nearly twice as
// fast as packed sequences but makes a plan for each shape it meets, in tens of milliseconds. So
// squares have few sizes: each is filled up with rows of zeros to the next size, at most an eighth
// longer for the short and a sixteenth from 2,048 rows, and those of one size run in batches of a
// power of two. A causal row never sees the filling behind it, and filling with zero gradients
// gives none. All other tiles are packed without gaps: the causal ones are the sequences of one
// call, the full ones those of another.
// Pure functions; everything counts rows, which have no bytes here.
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

  // A tile of `room` rows that begins with those of `range`; the rest is filling.
  void add(int32_t source, const Range& range, int64_t room);
};

// Packed rows that no piece holds, in order: to be filled with zeros.
std::vector<Range> filling_of(const Packing& packing);

// Tiles that one call of a library operation runs.
struct PackedTiles {
  Packing queries;
  Packing keys;
  bool causal = false;
  int64_t square_rows = 0;  // all tiles are causal squares of so many rows; 0: they are not
};

// Shorter squares are too small to gain from dense attention.
inline constexpr int64_t kSquareRowsMin = 1024;

// The least size of a square that holds so many rows.
int64_t square_size(int64_t rows);

// Squares by size, if `squares` are wanted; then all other causal tiles, then all full ones. No
// query row is in two tiles of different calls unless two slices hold it.
std::vector<PackedTiles> packed_tiles(const std::vector<AttentionSlice>& slices, bool squares);

}  // namespace longspan
