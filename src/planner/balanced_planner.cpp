#include "planner/balanced_planner.h"

#include <optional>
#include <utility>

#include "base/check.h"
#include "cost/charged_pairs.h"
#include "planner/direct_routing.h"
#include "planner/launch_groups.h"
#include "planner/plan_draft.h"

namespace longspan {
namespace {

// Bytes of a row on all legs of a direction, in widths of a key row of the activation type. Forward
// carries Q and O; K and V. Backward carries Q, dO, dQ (in the accumulation type, twice as wide);
// K, V, dK, dV (the same).
struct RowWeights {
  double query = 0;
  double key = 0;
};

RowWeights row_weights(Direction direction, double query_to_key_width) {
  if (direction == Direction::kForward) return {2 * query_to_key_width, 2};
  return {4 * query_to_key_width, 6};
}

// The smallest block border at or after `begin` for which the shard's queries from there on cost
// at most `charged_pairs`; at least the last row of blocks, however much it costs.
int64_t tail_cut(const Shard& shard, double charged_pairs) {
  if (static_cast<double>(shard.charged_pairs()) <= charged_pairs) return shard.queries.begin;
  const int64_t last = (shard.queries.end - 1) / kBlockTokens;
  int64_t low = shard.queries.begin / kBlockTokens + 1;
  if (low > last) return shard.queries.begin;
  int64_t high = last;
  while (low < high) {
    const int64_t middle = (low + high) / 2;
    const auto cost = static_cast<double>(shard.charged_pairs_from(middle * kBlockTokens));
    (cost <= charged_pairs ? high : low) = cost <= charged_pairs ? middle : middle + 1;
  }
  return low * kBlockTokens;
}

// Pass "place on servers": shards of ranks that are no servers go to servers, from the end of the
// line, each server filled up to the level: neighbours stay together. The first takes the rest.
void place_on_servers(PlanDraft* draft) {
  std::vector<size_t> servers;
  for (size_t rank = 0; rank < draft->num_servers(); ++rank) {
    if (draft->speed(rank) > 0) servers.push_back(rank);
  }
  for (size_t rank = draft->num_servers(); rank-- > 0;) {
    if (draft->speed(rank) > 0) continue;
    while (!draft->shards(rank).empty()) {
      const Shard& last = draft->shards(rank).back();
      const size_t server = servers.back();
      const double level = draft->speed(server) * draft->level();
      const double room = level - static_cast<double>(draft->load(server));
      const bool takes_rest = servers.size() == 1;
      const int64_t cut = takes_rest ? last.queries.begin : tail_cut(last, room);
      if (!takes_rest && static_cast<double>(last.charged_pairs_from(cut)) > room) {
        servers.pop_back();
        continue;
      }
      draft->move({rank, draft->shards(rank).size() - 1, cut, server});
    }
  }
}

double relative_load(const PlanDraft& draft, size_t server) {
  const auto load = static_cast<double>(draft.load(server));
  return draft.speed(server) > 0 ? load / draft.speed(server) : load;
}

// The move from `source` to a server below the level that has the most work for each byte, among
// those that leave the receiver less loaded than the source was.
std::optional<Move> best_move(const PlanDraft& draft, size_t source, const RowWeights& weights) {
  const double source_load = relative_load(draft, source);
  const double surplus = (source_load - draft.level()) * draft.speed(source);
  std::optional<Move> best;
  double best_score = 0;
  for (size_t server = 0; server < draft.num_servers(); ++server) {
    if (draft.speed(server) == 0) continue;
    const double deficit = (draft.level() - relative_load(draft, server)) * draft.speed(server);
    if (deficit <= 0) continue;
    for (size_t idx = 0; idx < draft.shards(source).size(); ++idx) {
      Shard shard = draft.shards(source)[idx];
      const int64_t cut = tail_cut(shard, std::min(surplus, deficit));
      shard.queries.begin = cut;
      const auto work = static_cast<double>(shard.charged_pairs());
      const auto load = static_cast<double>(draft.load(server));
      if ((load + work) / draft.speed(server) >= source_load) continue;
      const int64_t query_rows = shard.home == server ? 0 : shard.queries.size();
      const int64_t key_rows = draft.new_key_rows(shard, server);
      const double bytes = weights.query * static_cast<double>(query_rows) +
                           weights.key * static_cast<double>(key_rows);
      const double score = work / (bytes + 1);  // a shard may return home for nothing
      if (score <= best_score) continue;
      best_score = score;
      best = Move{source, idx, cut, server};
    }
  }
  return best;
}

// Pass "balance": ends because each move takes from the most loaded server and leaves the receiver
// below what that one had.
void balance(PlanDraft* draft, double epsilon, const RowWeights& weights) {
  while (true) {
    size_t source = 0;
    for (size_t server = 1; server < draft->num_servers(); ++server) {
      if (relative_load(*draft, server) > relative_load(*draft, source)) source = server;
    }
    if (relative_load(*draft, source) <= (1 + epsilon) * draft->level()) return;
    const std::optional<Move> move = best_move(*draft, source, weights);
    if (!move) return;
    draft->move(*move);
  }
}

// Pass "join neighbours": consecutive queries on one server become one task, unless one of them
// would wait for the other's inputs or the tiles would cost more.
std::vector<AttentionTask> join_neighbours(std::vector<Shard> shards, const LocalInputs& local) {
  std::sort(shards.begin(), shards.end(), [](const Shard& a, const Shard& b) {
    return std::pair(a.document, a.queries.begin) < std::pair(b.document, b.queries.begin);
  });
  std::vector<AttentionTask> tasks;
  for (const Shard& shard : shards) {
    const AttentionTask task{shard.document, shard.queries, {0, shard.queries.end}};
    if (!tasks.empty()) {
      AttentionTask& last = tasks.back();
      AttentionTask both = task;
      both.queries.begin = last.queries.begin;
      if (last.document == task.document && last.queries.end == task.queries.begin &&
          local.hold(last) == local.hold(task) &&
          charged_pairs(both.queries, both.keys) <=
              charged_pairs(last.queries, last.keys) + shard.charged_pairs()) {
        last = both;
        continue;
      }
    }
    tasks.push_back(task);
  }
  return tasks;
}

}  // namespace

std::vector<double> server_speeds(const PlannerOptions& options, int num_ranks) {
  if (options.server_speed.empty()) {
    return std::vector<double>(static_cast<size_t>(num_ranks), 1.0);
  }
  LONGSPAN_CHECK(static_cast<int>(options.server_speed.size()) == num_ranks, "speeds of ",
                 options.server_speed.size(), " servers for ", num_ranks, " ranks");
  double fastest = 0;
  for (const double speed : options.server_speed) {
    LONGSPAN_CHECK(speed >= 0, "server speed ", speed);
    fastest = std::max(fastest, speed);
  }
  LONGSPAN_CHECK(fastest > 0, "no rank is an attention server");
  return options.server_speed;
}

AttentionPlan balanced_plan(const TokenLayout& layout, int chunk, Direction direction,
                            const PlannerOptions& options) {
  LONGSPAN_CHECK(options.epsilon >= 0, "epsilon ", options.epsilon);
  PlanDraft draft(layout, chunk, server_speeds(options, layout.num_ranks()));
  place_on_servers(&draft);
  balance(&draft, options.epsilon, row_weights(direction, options.query_to_key_width));
  AttentionPlan plan{.direction = direction, .chunk = chunk};
  plan.servers.resize(draft.num_servers());
  for (size_t rank = 0; rank < draft.num_servers(); ++rank) {
    const LocalInputs local(layout, plan, static_cast<int>(rank));
    plan.servers[rank].tasks = join_neighbours(draft.shards(rank), local);
  }
  route_directly(layout, &plan);
  return plan;
}

}  // namespace longspan
