// The rate that an attention kernel reaches, as a function of a task's shape.
//
// Why: a kernel runs at very different rates for few or many queries and for few or many keys; a
// planner that counts FLOPs alone is off by a factor of two. A grid holds measured rates at
// chosen numbers of query and key rows.
//
//   RateGrid grid({128, 1024}, {128, 65536}, {80e12, 270e12, 120e12, 340e12});   // row by row
//   grid.at(500, 20000)     // bilinear in log2 of both numbers, clamped at the edges
//
// FLOPs are those of the charged pairs (charged_pairs.h). No library logarithm is involved, so
// every machine computes the same bits. Immutable value; any thread.
#pragma once

#include <cstdint>
#include <vector>

namespace longspan {

// log2 of a count >= 1, to 1e-6, from additions, multiplications and divisions only.
double log2_of_count(int64_t count);

// One axis of a grid, prepared for look-ups.
struct RateAxis {
  std::vector<double> log2;   // of the points
  std::vector<double> steps;  // one over the distance of two neighbours' logarithms
  // [bits of a count]: the first point that may lie above it.
  std::vector<uint32_t> first_above;
  bool operator==(const RateAxis&) const = default;
};

class RateGrid {
 public:
  RateGrid() = default;
  // `flops_per_s` holds one row of key counts for each query count. Counts ascend strictly, rates
  // are positive; UserError otherwise (grids come from files).
  RateGrid(std::vector<int64_t> query_rows, std::vector<int64_t> key_rows,
           std::vector<double> flops_per_s);

  double at(int64_t query_rows, int64_t key_rows) const;

  const std::vector<int64_t>& query_rows() const { return query_rows_; }
  const std::vector<int64_t>& key_rows() const { return key_rows_; }
  const std::vector<double>& flops_per_s() const { return flops_per_s_; }
  const RateAxis& query_axis() const { return query_axis_; }
  const RateAxis& key_axis() const { return key_axis_; }
  bool operator==(const RateGrid&) const = default;

 private:
  std::vector<int64_t> query_rows_;
  std::vector<int64_t> key_rows_;
  std::vector<double> flops_per_s_;
  RateAxis query_axis_;
  RateAxis key_axis_;
};

// Mean and largest relative error of the grid's interior points predicted from the grid without
// that point's row and column: how far to trust interpolation between measured points.
struct InterpolationError {
  double mean = 0;
  double max = 0;
};
InterpolationError cross_validate(const RateGrid& grid);

}  // namespace longspan
