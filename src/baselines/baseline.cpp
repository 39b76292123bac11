#include "baselines/baseline.h"

#include <algorithm>
#include <numeric>
#include <utility>

#include "base/check.h"
#include "planner/direct_routing.h"
#include "planner/held_rows.h"
#include "planner/prediction_parts.h"

namespace longspan {
namespace {

// Bytes that travel between pairs of ranks in one leg of one round, summed before they are sent:
// all rows from one rank to another are one message.
class PairBytes {
 public:
  explicit PairBytes(size_t num_ranks) : bytes_(num_ranks) {}

  void add(int from, double bytes) {
    double& sum = bytes_[static_cast<size_t>(from)];
    if (sum == 0) touched_.push_back(from);
    sum += bytes;
  }

  // Calls use(rank, bytes) for each rank that something was added for, in order of rank.
  template <typename Use>
  void flush(const Use& use) {
    std::sort(touched_.begin(), touched_.end());
    for (const int rank : touched_) use(rank, std::exchange(bytes_[static_cast<size_t>(rank)], 0));
    touched_.clear();
  }

 private:
  std::vector<double> bytes_;
  std::vector<int> touched_;
};

// Calls use(home, rows) for the parts of `rows` (normalized) whose home is another rank.
template <typename Use>
void for_each_foreign(const std::vector<HomeStretch>& homes, const std::vector<Range>& rows,
                      int rank, const Use& use) {
  for (const Range& range : rows) {
    auto at = std::upper_bound(
        homes.begin(), homes.end(), range.begin,
        [](int64_t position, const HomeStretch& home) { return position < home.line.begin; });
    for (--at; at != homes.end() && at->line.begin < range.end; ++at) {
      const Range part = intersect(range, at->line);
      if (!part.empty() && at->rank != rank) use(at->rank, part);
    }
  }
}

struct Legs {
  ExchangeClock enter;
  ExchangeClock exit;
};

// Rows straight from their homes and results straight back.
class NeededRows {
 public:
  NeededRows(const TokenLayout& layout, const Baseline& baseline, const PlanningCosts& costs)
      : layout_(layout),
        baseline_(baseline),
        bytes_(costs.pass(baseline.plan.direction).bytes),
        legs_{{costs.links, layout.num_ranks()}, {costs.links, layout.num_ranks()}},
        out_(static_cast<size_t>(layout.num_ranks())),
        back_(static_cast<size_t>(layout.num_ranks())),
        shared_keys_(baseline.plan.direction == Direction::kBackward
                         ? rows_with_other_parts(layout, baseline.plan, RowKind::kKeyValue)
                         : std::vector<Range>()) {}

  Legs play() {
    for (int rank = 0; rank < layout_.num_ranks(); ++rank) play_server(rank);
    legs_.enter.end_round();
    legs_.exit.end_round();
    return std::move(legs_);
  }

 private:
  void play_server(int rank) {
    const ServerPlan& server = baseline_.plan.servers[static_cast<size_t>(rank)];
    for_each_foreign(baseline_.homes, server.query_rows, rank, [&](int home, const Range& rows) {
      out_.add(home, static_cast<double>(rows.size()) * bytes_.query_out);
      back_.add(home, static_cast<double>(rows.size()) * bytes_.query_back);
    });
    move_keys(server.key_rows, rank);
    out_.flush([&](int home, double bytes) { legs_.enter.add(home, rank, bytes); });
    back_.flush([&](int home, double bytes) { legs_.exit.add(rank, home, bytes); });
  }

  void move_keys(const std::vector<Range>& rows, int rank) {
    for_each_foreign(baseline_.homes, rows, rank, [&](int home, const Range& part) {
      const auto all_rows = static_cast<double>(part.size());
      out_.add(home, all_rows * bytes_.key_out);
      if (bytes_.key_back <= 0) return;
      const auto shared_rows =
          static_cast<double>(total_size(intersect(shared_keys_, {Range(part)})));
      back_.add(home,
                shared_rows * bytes_.key_back_partial + (all_rows - shared_rows) * bytes_.key_back);
    });
  }

  const TokenLayout& layout_;
  const Baseline& baseline_;
  const RowBytes bytes_;
  Legs legs_;
  PairBytes out_;
  PairBytes back_;
  std::vector<Range> shared_keys_;
};

// An all-gather among the ranks of each group, and in backward a reduce-scatter. Every rank sends
// to its neighbour: inside a node all rows but its own; between nodes its share of what the node
// does not have.
Legs gather(const Baseline& baseline, const PlanningCosts& costs, int num_ranks) {
  const RowBytes& bytes = costs.pass(baseline.plan.direction).bytes;
  Legs legs{{costs.links, num_ranks}, {costs.links, num_ranks}};
  const auto own = rows_of_ranks(baseline);
  const int size = baseline.ranks_per_group;
  for (int first = 0; first < num_ranks; first += size) {
    const int end = std::min(num_ranks, first + size);
    double group_rows = 0;
    for (int rank = first; rank < end; ++rank) {
      group_rows += static_cast<double>(total_size(own[static_cast<size_t>(rank)]));
    }
    const auto same_node = [&](int one, int other) { return costs.links.same_node(one, other); };
    for (int rank = first; rank < end; ++rank) {
      int node_begin = rank;
      int node_end = rank + 1;
      while (node_begin > first && same_node(node_begin - 1, rank)) --node_begin;
      while (node_end < end && same_node(node_end, rank)) ++node_end;
      double node_rows = 0;
      for (int peer = node_begin; peer < node_end; ++peer) {
        node_rows += static_cast<double>(total_size(own[static_cast<size_t>(peer)]));
      }
      const auto node_ranks = static_cast<double>(node_end - node_begin);
      const double own_rows = node_ranks > 1
                                  ? static_cast<double>(total_size(own[static_cast<size_t>(rank)]))
                                  : node_rows;
      const double outside_rows = (group_rows - node_rows) / node_ranks;
      const double inside_rows = node_ranks > 1 ? group_rows - own_rows - outside_rows : 0;
      const auto send = [&](double rows, int peer) {
        if (rows <= 0 || peer == rank) return;
        legs.enter.add(rank, peer, rows * bytes.key_out);
        if (bytes.key_back > 0) legs.exit.add(peer, rank, rows * bytes.key_back_partial);
      };
      send(inside_rows, rank + 1 < node_end ? rank + 1 : node_begin);
      // The rank of the same place in the next node of the group, or any rank of it.
      const int next_node = node_end < end ? node_end : first;
      if (!same_node(next_node, rank)) {
        send(outside_rows, std::min(end - 1, next_node + rank - node_begin));
      }
    }
  }
  legs.enter.end_round();
  legs.exit.end_round();
  return legs;
}

// Copies of the key row that the most tasks of the server hold.
double most_copies(const TokenLayout& layout, const ServerPlan& server) {
  std::vector<std::pair<int64_t, int>> steps;
  for (const AttentionTask& task : server.tasks) {
    const Range rows = layout.to_line(task.document, task.keys);
    steps.emplace_back(rows.begin, 1);
    steps.emplace_back(rows.end, -1);
  }
  std::sort(steps.begin(), steps.end());
  int copies = 0;
  int most = 0;
  for (const auto& [position, change] : steps) most = std::max(most, copies += change);
  return most;
}

int64_t gathered_rows(const std::vector<std::vector<Range>>& own, int rank, int ranks_per_group) {
  const int first = rank / ranks_per_group * ranks_per_group;
  const int end = std::min(static_cast<int>(own.size()), first + ranks_per_group);
  int64_t rows = 0;
  for (int peer = first; peer < end; ++peer) rows += total_size(own[static_cast<size_t>(peer)]);
  return rows;
}

void predict_server(const TokenLayout& layout, const Baseline& baseline, const PassCosts& pass,
                    const std::vector<std::vector<Range>>& own, int rank,
                    ServerPrediction* prediction) {
  const auto idx = static_cast<size_t>(rank);
  const ServerPlan& server = baseline.plan.servers[idx];
  prediction->compute_s = compute_s(server, pass.attention);
  const int64_t query_rows = rows_outside(server.query_rows, own[idx]);
  int64_t foreign_keys = rows_outside(server.key_rows, own[idx]);
  prediction->key_rows = total_size(server.key_rows);
  prediction->key_copies = server.tasks.empty() ? 0 : 1;
  if (baseline.exchange == BaselineExchange::kGather) {
    prediction->key_rows = gathered_rows(own, rank, baseline.ranks_per_group);
    foreign_keys = prediction->key_rows - total_size(own[idx]);
  }
  if (baseline.keys_stored_per_task) {
    prediction->key_rows = 0;
    for (const AttentionTask& task : server.tasks) prediction->key_rows += task.keys.size();
    foreign_keys = prediction->key_rows;
    prediction->key_copies = most_copies(layout, server);
  }
  prediction->memory_bytes = static_cast<double>(query_rows) * pass.query_row_memory_bytes +
                             static_cast<double>(foreign_keys) * pass.key_row_memory_bytes;
}

}  // namespace

std::vector<std::vector<Range>> rows_of_ranks(const Baseline& baseline) {
  std::vector<std::vector<Range>> rows(baseline.plan.servers.size());
  for (const HomeStretch& home : baseline.homes) {
    std::vector<Range>& own = rows[static_cast<size_t>(home.rank)];
    if (!own.empty() && own.back().end == home.line.begin) {
      own.back().end = home.line.end;
    } else {
      own.push_back(home.line);
    }
  }
  return rows;
}

Baseline begin_baseline(const BaselineInput& input, BaselineExchange exchange) {
  LONGSPAN_CHECK(input.layout.num_chunks() == 1, "a baseline of ", input.layout.num_chunks(),
                 " chunks");
  Baseline baseline{.exchange = exchange};
  baseline.plan.direction = input.direction;
  baseline.plan.servers.resize(static_cast<size_t>(input.layout.num_ranks()));
  return baseline;
}

void add_task(const DocumentPart& queries, int rank, Baseline* baseline) {
  std::vector<AttentionTask>& tasks = baseline->plan.servers[static_cast<size_t>(rank)].tasks;
  if (!tasks.empty() && tasks.back().document == queries.document &&
      tasks.back().queries.end == queries.positions.begin) {
    tasks.back().queries.end = tasks.back().keys.end = queries.positions.end;
    return;
  }
  tasks.push_back({queries.document, queries.positions, {0, queries.positions.end}});
}

void finish_baseline(const TokenLayout& layout, Baseline* baseline) {
  std::sort(baseline->homes.begin(), baseline->homes.end(),
            [](const HomeStretch& a, const HomeStretch& b) { return a.line.begin < b.line.begin; });
  int64_t covered = 0;
  for (const HomeStretch& home : baseline->homes) {
    LONGSPAN_CHECK(home.line.begin == covered && !home.line.empty(), "home of ", home.line,
                   " after ", covered);
    covered = home.line.end;
  }
  LONGSPAN_CHECK(covered == layout.num_tokens(), "homes of ", covered, " tokens, not ",
                 layout.num_tokens());
  for (ServerPlan& server : baseline->plan.servers) {
    server.groups.clear();
    const auto tasks = static_cast<int64_t>(server.tasks.size());
    if (tasks > 0) server.groups.push_back({0, 0, tasks});
  }
  finish_plan(layout, &baseline->plan);
}

PlanPrediction predict_baseline(const TokenLayout& layout, const Baseline& baseline,
                                const PlanningCosts& costs) {
  check_costs(costs, layout.num_ranks());
  const PassCosts& pass = costs.pass(baseline.plan.direction);
  const auto own = rows_of_ranks(baseline);
  PlanPrediction prediction;
  prediction.servers.resize(baseline.plan.servers.size());
  for (int rank = 0; rank < layout.num_ranks(); ++rank) {
    predict_server(layout, baseline, pass, own, rank,
                   &prediction.servers[static_cast<size_t>(rank)]);
  }
  const Legs legs = baseline.exchange == BaselineExchange::kGather
                        ? gather(baseline, costs, layout.num_ranks())
                        : NeededRows(layout, baseline, costs).play();
  conclude(costs, baseline.plan.direction, legs.enter, legs.exit, &prediction);
  return prediction;
}

AttentionPlan runnable_plan(const TokenLayout& layout, const Baseline& baseline) {
  AttentionPlan plan = baseline.plan;
  route_directly(layout, &plan);
  return plan;
}

}  // namespace longspan
