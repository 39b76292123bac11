#include "cost/rate_grid.h"

#include <algorithm>
#include <bit>
#include <cmath>

#include "base/check.h"
#include "base/error.h"

namespace longspan {
namespace {

// A position between two neighbouring points of an axis.
struct AxisPosition {
  size_t below = 0;
  size_t above = 0;
  double fraction = 0;
};

AxisPosition locate(const std::vector<int64_t>& points, const std::vector<double>& logs,
                    int64_t count) {
  if (count <= points.front()) return {};
  if (count >= points.back()) return {points.size() - 1, points.size() - 1, 0};
  size_t above = 1;
  while (points[above] < count) ++above;
  const size_t below = above - 1;
  return {below, above, (log2_of_count(count) - logs[below]) / (logs[above] - logs[below])};
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

std::vector<double> logs_of(const std::vector<int64_t>& points) {
  std::vector<double> logs;
  for (const int64_t point : points) logs.push_back(log2_of_count(point));
  return logs;
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

// count = m 2^e with m in [1, 2); ln m = 2 artanh((m - 1) / (m + 1)), whose argument is at most
// 1/3.
double log2_of_count(int64_t count) {
  LONGSPAN_CHECK(count >= 1, "log2 of ", count);
  const auto exponent = static_cast<int>(std::bit_width(static_cast<uint64_t>(count))) - 1;
  const double mantissa = static_cast<double>(count) / static_cast<double>(int64_t{1} << exponent);
  const double s = (mantissa - 1) / (mantissa + 1);
  const double square = s * s;
  const double series =
      1 + square * (1.0 / 3 +
                    square * (1.0 / 5 + square * (1.0 / 7 + square * (1.0 / 9 + square / 11))));
  constexpr double kTwoOverLn2 = 2.8853900817779268;
  return exponent + kTwoOverLn2 * s * series;
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
  query_log2_ = logs_of(query_rows_);
  key_log2_ = logs_of(key_rows_);
}

double RateGrid::at(int64_t query_rows, int64_t key_rows) const {
  const AxisPosition query = locate(query_rows_, query_log2_, query_rows);
  const AxisPosition key = locate(key_rows_, key_log2_, key_rows);
  const auto along_keys = [&](size_t row) {
    const double* rates = flops_per_s_.data() + row * key_rows_.size();
    return rates[key.below] + key.fraction * (rates[key.above] - rates[key.below]);
  };
  const double below = along_keys(query.below);
  return below + query.fraction * (along_keys(query.above) - below);
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
