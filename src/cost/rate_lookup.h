// The look-up of a rate grid, for those who ask thousands of times: to be inlined.
//
//   const double flops_per_s = rate_at(grid, query_rows, key_rows);      // RateGrid::at
//
// Only for files that are compiled without fused multiply-add (src/cost): every machine and every
// caller must compute the same bits. Pure; any thread.
#pragma once

#include <array>
#include <bit>
#include <cstdint>
#include <vector>

#include "cost/rate_grid.h"

namespace longspan {

// log2 of mantissas: a table, because planning asks for thousands of logarithms; between its points
// a straight line, off by at most 2e-7.
inline constexpr int kLog2TableBits = 10;
inline constexpr int kLog2TableSteps = 1 << kLog2TableBits;
extern const std::array<double, kLog2TableSteps + 1> kLog2Table;

// The bits of the double are its exponent and, below, the place in the table and between its
// points.
inline double log2_of_positive(int64_t count) {
  const auto bits = std::bit_cast<uint64_t>(static_cast<double>(count));
  constexpr int kMantissaBits = 52;
  constexpr int kRestBits = kMantissaBits - kLog2TableBits;
  const auto exponent = static_cast<int64_t>(bits >> kMantissaBits) - 1023;
  const auto step = static_cast<size_t>(bits >> kRestBits) % kLog2TableSteps;
  constexpr double kRestScale = 1.0 / static_cast<double>(uint64_t{1} << kRestBits);
  const double fraction = static_cast<double>(bits & ((uint64_t{1} << kRestBits) - 1)) * kRestScale;
  return static_cast<double>(exponent) + kLog2Table[step] +
         fraction * (kLog2Table[step + 1] - kLog2Table[step]);
}

// A position between two neighbouring points of an axis.
struct AxisPosition {
  size_t below = 0;
  size_t above = 0;
  double fraction = 0;
};

inline AxisPosition locate(const std::vector<int64_t>& points, const RateAxis& axis,
                           int64_t count) {
  if (count <= points.front()) return {};
  if (count >= points.back()) return {points.size() - 1, points.size() - 1, 0};
  size_t above =
      axis.first_above[static_cast<size_t>(std::bit_width(static_cast<uint64_t>(count)))];
  while (points[above] < count) ++above;
  const size_t below = above - 1;
  return {below, above, (log2_of_positive(count) - axis.log2[below]) * axis.steps[below]};
}

inline double rate_at(const RateGrid& grid, int64_t query_rows, int64_t key_rows) {
  const AxisPosition query = locate(grid.query_rows(), grid.query_axis(), query_rows);
  const AxisPosition key = locate(grid.key_rows(), grid.key_axis(), key_rows);
  const auto along_keys = [&](size_t row) {
    const double* rates = grid.flops_per_s().data() + row * grid.key_rows().size();
    return rates[key.below] + key.fraction * (rates[key.above] - rates[key.below]);
  };
  const double below = along_keys(query.below);
  return below + query.fraction * (along_keys(query.above) - below);
}

}  // namespace longspan
