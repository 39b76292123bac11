#include <iomanip>
#include <sstream>

#include "base/error.h"
#include "observe/number_format.h"
#include "profile/measure_profile.h"

namespace longspan {
namespace {

std::string error_text(const RateGrid& grid) {
  const InterpolationError error = cross_validate(grid);
  return text("off by ", three_digits(100 * error.mean), " % in the mean, ",
              three_digits(100 * error.max), " % at most");
}

// The points of whole tiles. Below them a rate grows as the rows fall, since it counts the tile.
RateGrid whole_tiles(const RateGrid& grid) {
  constexpr int64_t kTileRows = 128;
  const auto from_tile = [](std::vector<int64_t> rows) {
    std::erase_if(rows, [](int64_t count) { return count < kTileRows; });
    return rows;
  };
  std::vector<int64_t> queries = from_tile(grid.query_rows());
  std::vector<int64_t> keys = from_tile(grid.key_rows());
  if (queries.empty() || keys.empty()) return {};
  std::vector<double> rates;
  for (const int64_t query_rows : queries) {
    for (const int64_t key_rows : keys) rates.push_back(grid.at(query_rows, key_rows));
  }
  return RateGrid(std::move(queries), std::move(keys), std::move(rates));
}

// What rates of a device are printed in.
struct RateUnit {
  const char* name;
  double flops_per_s;
};

RateUnit unit_of(const DeviceProfile& profile) {
  if (profile.matrix_flops_per_s < 1e13) return {"GFLOP/s", 1e9};
  return {"TFLOP/s", 1e12};
}

// One line for each query count.
void write_grid(std::ostream& out, const std::string& title, const RateGrid& grid,
                const RateUnit& unit) {
  constexpr int kWidth = 8;
  out << title << ", " << unit.name << " of charged pairs (rows: queries, columns: keys)\n"
      << std::setw(kWidth) << "";
  for (const int64_t keys : grid.key_rows()) out << std::setw(kWidth) << token_length(keys);
  out << "\n";
  size_t at = 0;
  for (const int64_t queries : grid.query_rows()) {
    out << std::setw(kWidth) << token_length(queries);
    for (size_t key = 0; key < grid.key_rows().size(); ++key) {
      out << std::setw(kWidth) << three_digits(grid.flops_per_s()[at++] / unit.flops_per_s);
    }
    out << "\n";
  }
  out << "  interpolation of each inner point from its neighbours alone: " << error_text(grid);
  const RateGrid large = whole_tiles(grid);
  if (large.query_rows().size() > 2 && large.key_rows().size() > 2) {
    out << "; of whole tiles: " << error_text(large);
  }
  out << "\n";
}

std::string microseconds(double seconds) {
  return three_digits(seconds * 1e6) + " us";
}

void write_pass(std::ostream& out, const std::string& direction, const PassRates& rates,
                const RateUnit& unit) {
  write_grid(out, direction + ", causal", rates.causal, unit);
  write_grid(out, direction + ", full", rates.full, unit);
  out << direction << ": " << microseconds(rates.launch_overhead_s) << " for each launch, "
      << microseconds(rates.task_overhead_s) << " for each task";
  if (rates.row_flops_per_s > 0) {
    out << ", one row of tiles " << three_digits(rates.row_flops_per_s / unit.flops_per_s) << " "
        << unit.name;
  }
  out << "\n";
}

}  // namespace

std::string describe_profile(const DeviceProfile& profile) {
  std::ostringstream out;
  const AttentionSizes& shape = profile.shape;
  out << profile.name << "\n" << profile.source << "\n";
  for (const auto& [name, version] : profile.versions)
    out << "  " << name << ": " << version << "\n";
  out << shape.query_heads << " query heads, " << shape.key_heads << " key heads, width "
      << shape.key_width << "\n";
  const RateUnit unit = unit_of(profile);
  write_pass(out, "forward", profile.forward, unit);
  write_pass(out, "backward", profile.backward, unit);
  out << "matrix products: " << three_digits(profile.matrix_flops_per_s / unit.flops_per_s) << " "
      << unit.name << "\n";
  if (profile.link) {
    out << "link between ranks: " << three_digits(profile.link->bytes_per_s * 1e-9) << " GB/s, "
        << microseconds(profile.link->latency_s) << " a round, "
        << microseconds(profile.link->message_overhead_s) << " a message\n";
  }
  out << "repeats agree within " << three_digits(100 * profile.spread)
      << " % of their median (half the width of their middle half, worst measurement)\n";
  return out.str();
}

}  // namespace longspan
