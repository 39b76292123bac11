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

// The highest rate that any task of at most so many queries and keys reaches. Between the points
// of a grid the rate is bilinear in monotone functions of both counts, so over such a box it is
// highest at a point of the grid, or where a line of the grid meets the box's far sides.
class BestRate {
 public:
  explicit BestRate(const PassRates& rates) : grids_{&rates.causal, &rates.full} {}

  double within(int64_t query_rows, int64_t key_rows) const {
    double best = 0;
    for (const RateGrid* grid : grids_) {
      best = std::max(best, grid->at(query_rows, key_rows));
      for (const int64_t query : grid->query_rows()) {
        if (query > query_rows) break;
        best = std::max(best, grid->at(query, key_rows));
      }
      for (size_t key_idx = 0; key_idx < grid->key_rows().size(); ++key_idx) {
        const int64_t key = grid->key_rows()[key_idx];
        if (key > key_rows) break;
        best = std::max(best, grid->at(query_rows, key));
        for (size_t query_idx = 0; query_idx < grid->query_rows().size(); ++query_idx) {
          if (grid->query_rows()[query_idx] > query_rows) break;
          const size_t point = query_idx * grid->key_rows().size() + key_idx;
          best = std::max(best, grid->flops_per_s()[point]);
        }
      }
    }
    return best * kRounding;
  }

 private:
  std::array<const RateGrid*, 2> grids_;
};

// Tiles that any cut of these queries into tasks charges at the least. Take every 128th query,
// counted from the last, and of its keys every 128th: no tile of any task holds two such pairs.
int64_t fewest_tiles(const Range& queries) {
  const int64_t rows = (queries.size() + kBlockTokens - 1) / kBlockTokens;
  // Keys of the last such query; each one before it has a tile less, down to none.
  const int64_t longest = (queries.end - 1) / kBlockTokens + 1;
  return rows * longest - rows * (rows - 1) / 2;
}

// Seconds at speed 1, without launches.
struct LeastWork {
  double total_s = 0;
  double longest_tile_s = 0;
};

LeastWork least_work(const TokenLayout& layout, const Range& chunk, const AttentionCost& cost) {
  const BestRate best(cost.rates());
  const double tile_flops =
      cost.flops_per_pair() * static_cast<double>(kBlockTokens * kBlockTokens);
  LeastWork work;
  for (const DocumentPart& part : layout.document_parts(chunk)) {
    const double tile_s = tile_flops / best.within(part.positions.size(), part.positions.end);
    const double overhead_s = cost.rates().task_overhead_s;
    work.total_s += overhead_s + static_cast<double>(fewest_tiles(part.positions)) * tile_s;
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
  std::vector<std::pair<double, double>> servers;  // (base, speed)
  for (size_t rank = 0; rank < speed.size(); ++rank) {
    if (speed[rank] > 0) servers.emplace_back(base_s.empty() ? 0 : base_s[rank], speed[rank]);
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
