#include <algorithm>

#include "kernels/cuda/launch.cuh"
#include "kernels/cuda/row_pieces.h"

namespace longspan::cuda {
namespace {

constexpr int kPieces = 96;  // of one launch: they fit into its 4 KB of arguments

// Pieces with the first block of each; a block has kBlockUnits units of its piece.
template <typename Piece>
struct PieceList {
  Piece pieces[kPieces];
  int32_t block_end[kPieces];
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

constexpr int64_t kBlockBytes = 64 << 10;

template <typename Unit>
__device__ void zero_units(void* target, int64_t bytes) {
  auto* to = static_cast<Unit*>(target);
  const int64_t units = bytes / static_cast<int64_t>(sizeof(Unit));
  for (int64_t at = threadIdx.x; at < units; at += kThreads) to[at] = Unit{};
}

template <typename Unit>
__device__ void copy_units(const void* source, void* target, int64_t bytes) {
  const auto* from = static_cast<const Unit*>(source);
  auto* to = static_cast<Unit*>(target);
  const int64_t units = bytes / static_cast<int64_t>(sizeof(Unit));
#pragma unroll 4
  for (int64_t at = threadIdx.x; at < units; at += kThreads) to[at] = from[at];
}

__global__ void copy_kernel(PieceList<CopyPiece> list) {
  const BlockPart part = part_of_block(list, kBlockBytes);
  const CopyPiece& piece = list.pieces[part.piece];
  char* target = static_cast<char*>(piece.target) + part.begin;
  const int64_t bytes = min(kBlockBytes, piece.bytes - part.begin);
  if (piece.source == nullptr) {
    const bool wide =
        (reinterpret_cast<uintptr_t>(target) | static_cast<uintptr_t>(bytes)) % 16 == 0;
    return wide ? zero_units<uint4>(target, bytes) : zero_units<unsigned char>(target, bytes);
  }
  const char* source = static_cast<const char*>(piece.source) + part.begin;
  const auto low_bits = reinterpret_cast<uintptr_t>(source) | reinterpret_cast<uintptr_t>(target) |
                        static_cast<uintptr_t>(bytes);
  if (low_bits % 16 == 0) {
    copy_units<uint4>(source, target, bytes);
  } else if (low_bits % 4 == 0) {
    copy_units<uint32_t>(source, target, bytes);
  } else {
    copy_units<unsigned char>(source, target, bytes);
  }
}

constexpr int64_t kBlockElements = 16 << 10;

template <typename T, int kVector>
__device__ void add_units(const T* source, Accumulate<T>* target, int64_t elements) {
  using A = Accumulate<T>;
  for (int64_t at = threadIdx.x * kVector; at < elements; at += kThreads * kVector) {
    A more[kVector];
    A sums[kVector];
    load<kVector>(source + at, more);
    load<kVector>(target + at, sums);
#pragma unroll
    for (int i = 0; i < kVector; ++i) sums[i] += more[i];
    store<kVector>(target + at, sums);
  }
}

template <typename T>
__global__ void add_kernel(PieceList<AddPiece<T>> list) {
  constexpr int kVector = kWide<Accumulate<T>>;
  const BlockPart part = part_of_block(list, kBlockElements);
  const AddPiece<T>& piece = list.pieces[part.piece];
  const T* source = piece.source + part.begin;
  Accumulate<T>* target = piece.target + part.begin;
  const int64_t elements = min(kBlockElements, piece.elements - part.begin);
  const bool wide = elements % kVector == 0 && reinterpret_cast<uintptr_t>(target) % 16 == 0 &&
                    reinterpret_cast<uintptr_t>(source) % (kVector * sizeof(T)) == 0;
  if (wide) {
    add_units<T, kVector>(source, target, elements);
  } else {
    add_units<T, 1>(source, target, elements);
  }
}

template <typename Piece, typename UnitsOf>
void launch_pieces(const char* name, void (*kernel)(PieceList<Piece>),
                   std::span<const Piece> pieces, const UnitsOf& units_of, int64_t block_units,
                   Stream stream) {
  PieceList<Piece> list;
  int64_t blocks = 0;
  const auto flush = [&] {
    launch(name, kernel, blocks, kThreads, stream, list);
    list.count = 0;
    blocks = 0;
  };
  for (const Piece& piece : pieces) {
    if (units_of(piece) == 0) continue;
    blocks += divide_up(units_of(piece), block_units);
    list.pieces[list.count] = piece;
    list.block_end[list.count] = static_cast<int32_t>(blocks);
    if (++list.count == kPieces) flush();
  }
  flush();
}

template <typename Real>
struct SummedParts {
  const Real* parts[kMaxSummed];
  int count = 0;
};

template <typename Real>
__global__ void sum_kernel(SummedParts<Real> of, int64_t elements, Real* sum) {
  const int64_t at = grid_thread();
  if (at >= elements) return;
  Real total = of.parts[0][at];
  for (int part = 1; part < of.count; ++part) total += of.parts[part][at];
  sum[at] = total;
}

}  // namespace

void copy_pieces(std::span<const CopyPiece> pieces, Stream stream) {
  launch_pieces(
      "copy of pieces", copy_kernel, pieces, [](const CopyPiece& piece) { return piece.bytes; },
      kBlockBytes, stream);
}

template <typename T>
void add_pieces(std::span<const AddPiece<T>> pieces, Stream stream) {
  launch_pieces(
      "addition of pieces", add_kernel<T>, pieces,
      [](const AddPiece<T>& piece) { return piece.elements; }, kBlockElements, stream);
}

template <typename Real>
void sum_in_order(std::span<const Real* const> parts, int64_t elements, Real* sum, Stream stream) {
  LONGSPAN_CHECK(!parts.empty() && std::ssize(parts) <= kMaxSummed, parts.size(),
                 " parts to sum, at most ", kMaxSummed);
  SummedParts<Real> of;
  std::copy(parts.begin(), parts.end(), of.parts);
  of.count = static_cast<int>(parts.size());
  launch("sum over ranks", sum_kernel<Real>, divide_up(elements, kThreads), kThreads, stream, of,
         elements, sum);
}

template void add_pieces(std::span<const AddPiece<Bf16>>, Stream);
template void add_pieces(std::span<const AddPiece<float>>, Stream);
template void add_pieces(std::span<const AddPiece<double>>, Stream);
template void sum_in_order(std::span<const float* const>, int64_t, float*, Stream);
template void sum_in_order(std::span<const double* const>, int64_t, double*, Stream);

}  // namespace longspan::cuda
