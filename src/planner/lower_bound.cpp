// The bounds of plan_prediction.h. Each part holds for every plan without resident key rows.
#include <algorithm>
#include <array>
#include <limits>
#include <utility>

#include "base/check.h"
#include "planner/plan_prediction.h"

namespace longspan {
namespace {

// Interpolated rates are rounded; the bound must not be.
constexpr double kRounding = 1 + 1e-9;

// Of each 128 query rows of a document part, counted from its begin, only the first `marked` count:
// each as 1 / marked of a tile for every 128th of its keys. No 128 rows in a row hold more than
// one mark, so no task holds more marks than it is charged tiles, and one of q < marked query rows
// holds at most q / marked of them.
struct Marks {
  int64_t marked = kBlockTokens;

  double tiles(const Range& queries) const {
    int64_t key_marks = 0;
    for (int64_t row = queries.begin; row < queries.end; row += kBlockTokens) {
      for (const Range& rows : same_keys({row, std::min(row + marked, queries.end)})) {
        key_marks += rows.size() * (rows.begin / kBlockTokens + 1);
      }
    }
    return static_cast<double>(key_marks) / static_cast<double>(marked);
  }

  // The share of a task's tiles that may be marked.
  double share(int64_t query_rows) const {
    return std::min(1.0, static_cast<double>(query_rows) / static_cast<double>(marked));
  }

 private:
  // The rows before and from the multiple of 128 inside them: each sees the same number of marks.
  static std::array<Range, 2> same_keys(const Range& rows) {
    const int64_t block_end = (rows.begin / kBlockTokens + 1) * kBlockTokens;
    const int64_t cut = std::min(block_end, rows.end);
    return {Range{rows.begin, cut}, Range{cut, rows.end}};
  }
};

// Marked tiles per FLOP that any task of a document part reaches at best: the highest rate times
// the share of marked tiles. Between the points of a grid the rate is bilinear in monotone
// functions of both counts, so over a cell cut at the part's numbers of rows it is highest at a
// corner; the share is highest at the cell's upper end.
class BestRate {
 public:
  explicit BestRate(const PassRates& rates) : rates_(rates) {}

  double of(const Range& queries, const Marks& marks) const {
    return kRounding * std::max(within(rates_.causal, queries, marks, false),
                                within(rates_.full, queries, marks, true));
  }

 private:
  static double within(const RateGrid& grid, const Range& queries, const Marks& marks, bool full) {
    double best = 0;
    int64_t low = 1;
    for (size_t idx = 0; low <= queries.size(); ++idx) {
      const bool last = idx == grid.query_rows().size();
      const int64_t high = last ? queries.size() : std::min(queries.size(), grid.query_rows()[idx]);
      if (high < low) continue;
      // The keys of a task without mask end where its queries begin.
      const int64_t keys = full ? queries.end + 1 - low : queries.end;
      const double rate = std::max(along_keys(grid, low, keys), along_keys(grid, high, keys));
      best = std::max(best, rate * marks.share(high));
      if (high == queries.size()) break;
      low = high;
      if (last) break;
    }
    return best;
  }

  static double along_keys(const RateGrid& grid, int64_t query_rows, int64_t most_keys) {
    double best = grid.at(query_rows, most_keys);
    for (const int64_t keys : grid.key_rows()) {
      if (keys >= most_keys) break;
      best = std::max(best, grid.at(query_rows, keys));
    }
    return best;
  }

  const PassRates& rates_;
};

// Seconds at speed 1, without launches.
struct LeastWork {
  double total_s = 0;
  double longest_tile_s = 0;
};

// Each way of marking gives a bound; the larger counts. Rows marked so that the part's last ones
// fill a tile charge what whole tiles cost; all rows marked charge tasks of few queries for those
// that they leave to others.
LeastWork least_work(const TokenLayout& layout, const Range& chunk, const AttentionCost& cost) {
  const BestRate best(cost.rates());
  const double overhead_s = cost.rates().task_overhead_s;
  const double tile_flops =
      cost.flops_per_pair() * static_cast<double>(kBlockTokens * kBlockTokens);
  LeastWork work;
  for (const DocumentPart& part : layout.document_parts(chunk)) {
    const Range& queries = part.positions;
    const int64_t last_rows = (queries.size() - 1) % kBlockTokens + 1;
    double work_s = 0;
    for (const Marks& marks : {Marks{last_rows}, Marks{}}) {
      work_s = std::max(work_s, marks.tiles(queries) * tile_flops / best.of(queries, marks));
    }
    work.total_s += overhead_s + work_s;
    const double tile_s = tile_flops / best.of(queries, Marks{1});
    work.longest_tile_s = std::max(work.longest_tile_s, overhead_s + tile_s);
  }
  return work;
}

// A server that runs anything pays a launch before: that is work-free time.
double least_compute_s(const LeastWork& work, double launch_s, const PlanningCosts& costs) {
  std::vector<double> start_s(costs.speed.size(), 0.0);
  double latest_base_s = 0;
  double first_tile_end_s = std::numeric_limits<double>::infinity();
  for (size_t rank = 0; rank < costs.speed.size(); ++rank) {
    if (costs.speed[rank] <= 0) continue;
    const double base_s = costs.base_s.empty() ? 0 : costs.base_s[rank];
    latest_base_s = std::max(latest_base_s, base_s);
    start_s[rank] = base_s + launch_s / costs.speed[rank];
    first_tile_end_s =
        std::min(first_tile_end_s, start_s[rank] + work.longest_tile_s / costs.speed[rank]);
  }
  if (work.total_s <= 0) return latest_base_s;
  return std::max(
      {water_level_s(work.total_s, costs.speed, start_s), first_tile_end_s, latest_base_s});
}

// Rows that have to pass a rank on each leg, for one way of computing its queries.
struct LeastBytes {
  double out = 0;
  double back = 0;
};

class LeastExchange {
 public:
  LeastExchange(const TokenLayout& layout, int chunk, const PlanningCosts& costs,
                Direction direction)
      : layout_(layout),
        chunk_(chunk),
        links_(costs.links),
        speed_(costs.speed),
        bytes_(costs.pass(direction).bytes),
        window_(costs.pass(direction).window) {
    const double query_back = std::min(bytes_.query_back, bytes_.query_back_partial);
    const double key_back = std::min(bytes_.key_back, bytes_.key_back_partial);
    bytes_.query_back = query_back;
    bytes_.key_back = key_back;
  }

  // What the exchange of this rank takes beyond the windows at the least.
  double late_s(int rank) const {
    const Range piece = layout_.piece(chunk_, rank);
    if (speed_[static_cast<size_t>(rank)] <= 0) {
      return late_s(rows_bytes(piece.size(), piece.size() + earlier_keys_of(rank)));
    }
    if (piece.empty()) return 0;
    const DocumentPart first = layout_.document_parts(piece).front();
    const int64_t foreign = first.positions.begin - own_keys_before(rank, first);
    if (foreign == 0) return 0;
    // Either each of these queries leaves, or one stays and all keys before the piece come.
    return std::min(late_s(rows_bytes(first.positions.size(), 0)), late_s(rows_bytes(0, foreign)));
  }

 private:
  LeastBytes rows_bytes(int64_t queries, int64_t keys) const {
    const auto query_rows = static_cast<double>(queries);
    const auto key_rows = static_cast<double>(keys);
    return {query_rows * bytes_.query_out + key_rows * bytes_.key_out,
            query_rows * bytes_.query_back + key_rows * bytes_.key_back};
  }

  // Keys that a rank holds of earlier chunks and that this chunk's queries see.
  int64_t earlier_keys_of(int rank) const {
    const Range chunk = layout_.chunk(chunk_);
    if (chunk.empty()) return 0;
    return own_keys_before(rank, layout_.document_parts(chunk).front());
  }

  // Rows of the part's document, before the part, whose home is the rank.
  int64_t own_keys_before(int rank, const DocumentPart& part) const {
    const Range before{part.line.begin - part.positions.begin, part.line.begin};
    int64_t rows = 0;
    for (const Range& piece : layout_.pieces_before(chunk_, rank)) {
      rows += intersect(piece, before).size();
    }
    return rows;
  }

  // At best both link classes carry their share side by side.
  double leg_s(double bytes) const {
    if (bytes <= 0) return 0;
    double bytes_per_s = 0;
    double start_s = std::numeric_limits<double>::infinity();
    bool is_free = false;
    const auto use = [&](const LinkClass& link) {
      is_free = is_free || link.bytes_per_s <= 0;
      bytes_per_s += link.bytes_per_s;
      start_s = std::min(start_s, link.latency_s + link.message_overhead_s);
    };
    if (links_.servers_per_node > 1) use(links_.inside_node);
    if (links_.servers_per_node < layout_.num_ranks()) use(links_.between_nodes);
    return is_free ? start_s : start_s + bytes / bytes_per_s;
  }

  double late_s(const LeastBytes& least) const {
    return std::max(0.0, leg_s(least.out) - window_.enter_s) +
           std::max(0.0, leg_s(least.back) - window_.exit_s);
  }

  const TokenLayout& layout_;
  const int chunk_;
  const ServerLinks links_;
  const std::vector<double>& speed_;
  RowBytes bytes_;
  const ExchangeWindow window_;
};

}  // namespace

double water_level_s(double work_s, const std::vector<double>& speed,
                     const std::vector<double>& base_s) {
  if (base_s.empty()) {
    // All are begun at once.
    double total_speed = 0;
    for (const double server_speed : speed) total_speed += server_speed;
    LONGSPAN_CHECK(total_speed > 0, "a level of no servers");
    return work_s / total_speed;
  }
  std::vector<std::pair<double, double>> servers;  // (base, speed)
  for (size_t rank = 0; rank < speed.size(); ++rank) {
    if (speed[rank] > 0) servers.emplace_back(base_s[rank], speed[rank]);
  }
  LONGSPAN_CHECK(!servers.empty(), "a level of no servers");
  std::sort(servers.begin(), servers.end());
  // The work that servers begun so far take up to time t is t * total_speed - speed_times_base.
  double total_speed = 0;
  double speed_times_base = 0;
  double level_s = servers.front().first;
  for (const auto& [base, server_speed] : servers) {
    if (total_speed > 0 && base * total_speed - speed_times_base >= work_s) break;
    total_speed += server_speed;
    speed_times_base += server_speed * base;
    level_s = (work_s + speed_times_base) / total_speed;
  }
  return level_s;
}

double lower_bound_s(const TokenLayout& layout, int chunk, Direction direction,
                     const PlanningCosts& costs) {
  check_costs(costs, layout.num_ranks());
  const AttentionCost& cost = costs.pass(direction).attention;
  const LeastWork work = least_work(layout, layout.chunk(chunk), cost);
  const LeastExchange exchange(layout, chunk, costs, direction);
  double late_s = 0;
  for (int rank = 0; rank < layout.num_ranks(); ++rank) {
    late_s = std::max(late_s, exchange.late_s(rank));
  }
  return (least_compute_s(work, cost.launch_s(), costs) + late_s) / kRounding;
}

}  // namespace longspan
