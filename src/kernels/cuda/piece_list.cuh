// Private to kernels/cuda: one launch over a list of pieces that travels in its arguments.
//
//   template <...> __global__ void copy_kernel(PieceList<CopyPiece> list) {
//     const BlockPart part = part_of_block(list, kBlockBytes);     // list.pieces[part.piece] ...
//   }
//   launch_pieces("copy", copy_kernel, pieces, units_of, kBlockBytes, stream);
//
// Pieces are cut into parts of `block_units` units, a block for each; a list that is longer than
// the arguments may be becomes several launches.
#pragma once

#include <algorithm>
#include <span>

#include "kernels/cuda/launch.cuh"

namespace longspan::cuda {

// Of one launch: they fit into its 4 KB of arguments, with room for a few more.
template <typename Piece>
constexpr int kPiecesMax = static_cast<int>(std::min<size_t>(96, 3800 / (sizeof(Piece) + 4)));

// Pieces with the first block behind each.
template <typename Piece>
struct PieceList {
  Piece pieces[kPiecesMax<Piece>];
  int32_t block_end[kPiecesMax<Piece>];
  int count = 0;
};

struct BlockPart {
  int piece = 0;
  int64_t begin = 0;
};

template <typename Piece>
__device__ BlockPart part_of_block(const PieceList<Piece>& list, int64_t block_units) {
  int low = 0;
  int high = list.count - 1;
  while (low < high) {
    const int middle = (low + high) / 2;
    if (static_cast<int>(blockIdx.x) < list.block_end[middle]) {
      high = middle;
    } else {
      low = middle + 1;
    }
  }
  const int first_block = low == 0 ? 0 : list.block_end[low - 1];
  return {low, (static_cast<int>(blockIdx.x) - first_block) * block_units};
}

// `more` follows the list in the kernel's arguments.
template <typename Piece, typename UnitsOf, typename... Parameters, typename... More>
void launch_pieces(const char* name, void (*kernel)(PieceList<Piece>, Parameters...),
                   std::span<const Piece> pieces, const UnitsOf& units_of, int64_t block_units,
                   Stream stream, More... more) {
  PieceList<Piece> list;
  int64_t blocks = 0;
  const auto flush = [&] {
    launch(name, kernel, blocks, kThreads, stream, list, more...);
    list.count = 0;
    blocks = 0;
  };
  for (const Piece& piece : pieces) {
    if (units_of(piece) == 0) continue;
    blocks += divide_up(units_of(piece), block_units);
    list.pieces[list.count] = piece;
    list.block_end[list.count] = static_cast<int32_t>(blocks);
    if (++list.count == kPiecesMax<Piece>) flush();
  }
  flush();
}

}  // namespace longspan::cuda
