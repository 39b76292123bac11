#include "cost/rate_grid.h"

#include <algorithm>
#include <array>
#include <cmath>

#include "base/check.h"
#include "base/error.h"
#include "cost/rate_lookup.h"

namespace longspan {
namespace {

// ln m = 2 artanh((m - 1) / (m + 1)) for m in [1, 2], whose argument is at most 1/3.
double log2_of_mantissa(double mantissa) {
  const double s = (mantissa - 1) / (mantissa + 1);
  const double square = s * s;
  double series = 0;
  for (int term = 17; term >= 1; term -= 2) series = series * square + 1.0 / term;
  constexpr double kTwoOverLn2 = 2.8853900817779268;
  return kTwoOverLn2 * s * series;
}

std::array<double, kLog2TableSteps + 1> make_log2_table() {
  std::array<double, kLog2TableSteps + 1> table{};
  for (int step = 0; step <= kLog2TableSteps; ++step) {
    table[static_cast<size_t>(step)] =
        log2_of_mantissa(1 + static_cast<double>(step) / kLog2TableSteps);
  }
  return table;
}

void check_axis(const std::vector<int64_t>& points, const char* name) {
  if (points.empty() || points.front() < 1) {
    throw UserError(text("rate grid: ", name, " must start at 1 or more"));
  }
  for (size_t idx = 1; idx < points.size(); ++idx) {
    if (points[idx] > points[idx - 1]) continue;
    throw UserError(
        text("rate grid: ", name, " must ascend, but ", points[idx], " follows ", points[idx - 1]));
  }
}

RateAxis prepare(const std::vector<int64_t>& points) {
  RateAxis axis;
  for (const int64_t point : points) axis.log2.push_back(log2_of_count(point));
  for (size_t idx = 1; idx < points.size(); ++idx) {
    axis.steps.push_back(1 / (axis.log2[idx] - axis.log2[idx - 1]));
  }
  constexpr int kCountBits = 63;
  for (int bits = 0; bits <= kCountBits; ++bits) {
    const int64_t smallest = bits == 0 ? 0 : int64_t{1} << (bits - 1);
    const auto above = std::upper_bound(points.begin() + 1, points.end(), smallest - 1);
    axis.first_above.push_back(static_cast<uint32_t>(above - points.begin()));
  }
  return axis;
}

// The grid without one row and one column.
RateGrid without(const RateGrid& grid, size_t query_idx, size_t key_idx) {
  std::vector<int64_t> query_rows = grid.query_rows();
  std::vector<int64_t> key_rows = grid.key_rows();
  std::vector<double> rates;
  for (size_t query = 0; query < query_rows.size(); ++query) {
    for (size_t key = 0; key < key_rows.size(); ++key) {
      if (query == query_idx || key == key_idx) continue;
      rates.push_back(grid.flops_per_s()[query * key_rows.size() + key]);
    }
  }
  query_rows.erase(query_rows.begin() + static_cast<std::ptrdiff_t>(query_idx));
  key_rows.erase(key_rows.begin() + static_cast<std::ptrdiff_t>(key_idx));
  return RateGrid(std::move(query_rows), std::move(key_rows), std::move(rates));
}

}  // namespace

const std::array<double, kLog2TableSteps + 1> kLog2Table = make_log2_table();

double log2_of_count(int64_t count) {
  LONGSPAN_CHECK(count >= 1, "log2 of ", count);
  return log2_of_positive(count);
}

RateGrid::RateGrid(std::vector<int64_t> query_rows, std::vector<int64_t> key_rows,
                   std::vector<double> flops_per_s)
    : query_rows_(std::move(query_rows)),
      key_rows_(std::move(key_rows)),
      flops_per_s_(std::move(flops_per_s)) {
  check_axis(query_rows_, "query counts");
  check_axis(key_rows_, "key counts");
  if (flops_per_s_.size() != query_rows_.size() * key_rows_.size()) {
    throw UserError(text("rate grid: ", flops_per_s_.size(), " rates for ", query_rows_.size(),
                         " x ", key_rows_.size(), " points"));
  }
  for (const double rate : flops_per_s_) {
    if (std::isfinite(rate) && rate > 0) continue;
    throw UserError(text("rate grid: rates must be positive, not ", rate));
  }
  query_axis_ = prepare(query_rows_);
  key_axis_ = prepare(key_rows_);
}

double RateGrid::at(int64_t query_rows, int64_t key_rows) const {
  return rate_at(*this, query_rows, key_rows);
}

InterpolationError cross_validate(const RateGrid& grid) {
  InterpolationError error;
  int64_t points = 0;
  for (size_t query = 1; query + 1 < grid.query_rows().size(); ++query) {
    for (size_t key = 1; key + 1 < grid.key_rows().size(); ++key) {
      const double measured = grid.flops_per_s()[query * grid.key_rows().size() + key];
      const double predicted =
          without(grid, query, key).at(grid.query_rows()[query], grid.key_rows()[key]);
      const double relative = std::abs(predicted / measured - 1);
      error.mean += relative;
      error.max = std::max(error.max, relative);
      ++points;
    }
  }
  if (points > 0) error.mean /= static_cast<double>(points);
  return error;
}

}  // namespace longspan
