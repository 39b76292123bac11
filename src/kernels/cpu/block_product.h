// Products of small blocks with the sums in registers: the inner loop of the attention kernels.
//
// Why not BLAS: it packs both factors at each call, a fifth of its time at a depth of 64, and costs
// microseconds where a document has a few tokens. Here the left factor is read element by element
// through any two strides (so it may stand transposed), the right one by rows of vectors.
//
//   // S[keys, lanes] = K[keys, width] * Qt[width, lanes]
//   multiply<Start::kZero>({keys, lanes, width}, {k, k_stride, 1}, {qt, lanes}, {s, lanes});
//
// For inclusion by the kernels of this folder alone: the width of a vector is that of the compiler
// flags of their library. Pure on the result.
#pragma once

#include <cstdint>
#include <cstring>

namespace longspan {

#if defined(__AVX512F__)
inline constexpr int64_t kVectorBytes = 64;
#elif defined(__AVX__)
inline constexpr int64_t kVectorBytes = 32;
#else
inline constexpr int64_t kVectorBytes = 16;
#endif

template <typename Real>
inline constexpr int64_t kVectorLanes = kVectorBytes / static_cast<int64_t>(sizeof(Real));
// Columns of a full tile: two vectors.
template <typename Real>
inline constexpr int64_t kPanelLanes = 2 * kVectorLanes<Real>;

struct ProductSize {
  int64_t rows;
  int64_t columns;
  int64_t depth;
};

template <typename Real>
struct LeftFactor {
  const Real* data;
  int64_t row_stride;
  int64_t depth_stride;
};

template <typename Real>
struct RightFactor {
  const Real* data;
  int64_t depth_stride;
};

template <typename Real>
struct ProductRows {
  Real* data;
  int64_t row_stride;
  const Real* shrink = nullptr;  // by column, for Start::kShrink
};

// What the sums begin with: zero, the result's values, or those times `shrink`.
enum class Start { kZero, kKeep, kShrink };

namespace block_product {

template <typename Real>
using Vector [[gnu::vector_size(kVectorBytes)]] = Real;

// A vector in memory lies like an array of values, at any place of one.
template <typename Real>
inline Vector<Real> load(const Real* data) {
  Vector<Real> vector;
  std::memcpy(&vector, data, sizeof(vector));
  return vector;
}
template <typename Real>
inline void store(const Vector<Real>& vector, Real* data) {
  std::memcpy(data, &vector, sizeof(vector));
}

// Not inlined: among the caller's variables the compiler would run out of registers.
template <Start kStart, int kRows, int kVectors, typename Real>
[[gnu::noinline]] void tile(int64_t depth, const LeftFactor<Real>& left,
                            const RightFactor<Real>& right, const ProductRows<Real>& result) {
  using V = Vector<Real>;
  constexpr int64_t kLanes = kVectorLanes<Real>;
  V sums[kRows][kVectors];
#pragma GCC unroll 8
  for (int row = 0; row < kRows; ++row) {
#pragma GCC unroll 2
    for (int part = 0; part < kVectors; ++part) {
      V& sum = sums[row][part];
      if constexpr (kStart == Start::kZero) {
        sum = V{};
      } else {
        sum = load<Real>(result.data + row * result.row_stride + part * kLanes);
      }
      if constexpr (kStart == Start::kShrink) sum *= load<Real>(result.shrink + part * kLanes);
    }
  }
  // Rows in groups of three, each a pointer and multiples of the stride that addresses can hold.
  const Real* of_left[2] = {left.data, left.data + 3 * left.row_stride};
  const Real* of_right = right.data;
  for (int64_t idx = 0; idx < depth; ++idx) {
    V vectors[kVectors];
    for (int part = 0; part < kVectors; ++part) {
      vectors[part] = load<Real>(of_right + part * kLanes);
    }
    for (int row = 0; row < kRows; ++row) {
      const Real factor = of_left[row / 3][row % 3 * left.row_stride];
      for (int part = 0; part < kVectors; ++part) sums[row][part] += factor * vectors[part];
    }
    of_left[0] += left.depth_stride;
    of_left[1] += left.depth_stride;
    of_right += right.depth_stride;
  }
#pragma GCC unroll 8
  for (int row = 0; row < kRows; ++row) {
#pragma GCC unroll 2
    for (int part = 0; part < kVectors; ++part) {
      store<Real>(sums[row][part], result.data + row * result.row_stride + part * kLanes);
    }
  }
}

// Twelve sums keep two multiply-add units busy and leave registers for the factors.
inline constexpr int64_t kTileRows = 6;

template <Start kStart, int kVectors, typename Real>
inline void column_tile(int64_t rows, int64_t depth, LeftFactor<Real> left,
                        const RightFactor<Real>& right, ProductRows<Real> result) {
  for (; rows >= kTileRows; rows -= kTileRows) {
    tile<kStart, kTileRows, kVectors>(depth, left, right, result);
    left.data += kTileRows * left.row_stride;
    result.data += kTileRows * result.row_stride;
  }
  switch (rows) {
    case 5:
      return tile<kStart, 5, kVectors>(depth, left, right, result);
    case 4:
      return tile<kStart, 4, kVectors>(depth, left, right, result);
    case 3:
      return tile<kStart, 3, kVectors>(depth, left, right, result);
    case 2:
      return tile<kStart, 2, kVectors>(depth, left, right, result);
    case 1:
      return tile<kStart, 1, kVectors>(depth, left, right, result);
    default:
      return;
  }
}

// One column that fills no vector.
template <Start kStart, typename Real>
inline void single_column(int64_t rows, int64_t depth, const LeftFactor<Real>& left,
                          const RightFactor<Real>& right, const ProductRows<Real>& result) {
  for (int64_t row = 0; row < rows; ++row) {
    Real& value = result.data[row * result.row_stride];
    Real sum = kStart == Start::kZero ? 0 : value;
    if constexpr (kStart == Start::kShrink) sum *= *result.shrink;
    for (int64_t idx = 0; idx < depth; ++idx) {
      sum += left.data[row * left.row_stride + idx * left.depth_stride] *
             right.data[idx * right.depth_stride];
    }
    value = sum;
  }
}

}  // namespace block_product

// result[rows, columns] = start + left[rows, depth] * right[depth, columns].
template <Start kStart, typename Real>
inline void multiply(const ProductSize& size, const LeftFactor<Real>& left, RightFactor<Real> right,
                     ProductRows<Real> result) {
  const auto next_columns = [&](int64_t columns) {
    right.data += columns;
    result.data += columns;
    if (kStart == Start::kShrink) result.shrink += columns;
  };
  int64_t columns = size.columns;
  for (; columns >= kPanelLanes<Real>; columns -= kPanelLanes<Real>) {
    block_product::column_tile<kStart, 2>(size.rows, size.depth, left, right, result);
    next_columns(kPanelLanes<Real>);
  }
  for (; columns >= kVectorLanes<Real>; columns -= kVectorLanes<Real>) {
    block_product::column_tile<kStart, 1>(size.rows, size.depth, left, right, result);
    next_columns(kVectorLanes<Real>);
  }
  for (; columns > 0; --columns) {
    block_product::single_column<kStart>(size.rows, size.depth, left, right, result);
    next_columns(1);
  }
}

}  // namespace longspan
