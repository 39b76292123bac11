#include <algorithm>

#include "kernels/cuda/piece_list.cuh"
#include "kernels/cuda/row_pieces.h"

namespace longspan::cuda {
namespace {

// Small enough that a few megabytes keep all multiprocessors busy.
constexpr int64_t kBlockBytes = 16 << 10;

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

constexpr int64_t kBlockElements = 4 << 10;

template <typename T, int kVector>
__device__ void add_units(const T* source, Accumulate<T>* target, int64_t elements) {
  using A = Accumulate<T>;
#pragma unroll 4
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

// A thread has neighbouring rows of one head: what it reads lies in lines that its block shares,
// what it writes lies side by side.
constexpr int64_t kBlockRows = 128;

__global__ void head_rows_kernel(PieceList<HeadRowsPiece> list, int64_t heads) {
  const BlockPart part = part_of_block(list, kBlockRows);
  const HeadRowsPiece& piece = list.pieces[part.piece];
  const int64_t rows = min(kBlockRows, piece.rows - part.begin);
  for (int64_t at = threadIdx.x; at < kBlockRows * heads; at += kThreads) {
    const int64_t row = part.begin + at % kBlockRows;
    const int64_t head = at / kBlockRows;
    if (at % kBlockRows >= rows) continue;
    piece.target[head * piece.head_stride + row] =
        piece.source == nullptr ? INFINITY : piece.source[row * heads + head];
  }
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

void copy_head_rows(std::span<const HeadRowsPiece> pieces, int64_t heads, Stream stream) {
  launch_pieces(
      "rows by head", head_rows_kernel, pieces,
      [](const HeadRowsPiece& piece) { return piece.rows; }, kBlockRows, stream, heads);
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
