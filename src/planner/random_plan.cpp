#include "planner/random_plan.h"

#include <limits>
#include <utility>

#include "base/check.h"
#include "base/random.h"
#include "planner/held_rows.h"
#include "planner/interval_set.h"
#include "planner/random_routes.h"

namespace longspan {
namespace {

class RandomPlanner {
 public:
  RandomPlanner(const TokenLayout& layout, int chunk, Direction direction, uint64_t seed,
                const RandomPlanOptions& options)
      : layout_(layout),
        options_(options),
        random_(seed, direction == Direction::kForward ? "forward plan" : "backward plan",
                static_cast<uint64_t>(chunk)) {
    LONGSPAN_CHECK(options.max_rounds >= 1, "max_rounds ", options.max_rounds);
    plan_.direction = direction;
    plan_.chunk = chunk;
    plan_.servers.resize(static_cast<size_t>(layout.num_ranks()));
  }

  AttentionPlan make() {
    declare_resident_rows();
    place(cut_tiles());
    finish_plan(layout_, &plan_);
    RandomRoutes routes(layout_, options_, &random_);
    routes.route(&plan_);
    for (size_t rank = 0; rank < plan_.servers.size(); ++rank) form_groups(rank);
    return std::move(plan_);
  }

 private:
  bool chance(double probability) { return random_.uniform() < probability; }

  void declare_resident_rows() {
    const Range chunk = layout_.chunk(plan_.chunk);
    const bool forward = plan_.direction == Direction::kForward;
    const std::vector<Range> allowed = normalize({{0, forward ? chunk.begin : chunk.end}});
    for (size_t rank = 0; rank < options_.resident_candidates.size(); ++rank) {
      const auto home = home_rows(layout_, plan_.chunk, static_cast<int>(rank), RowKind::kKeyValue);
      const auto left = subtract(normalize(options_.resident_candidates[rank]), home);
      std::vector<Range> chosen;
      for (const Range& range : intersect(left, allowed)) {
        const int64_t begin = random_.between(range.begin, range.end);
        chosen.push_back({begin, random_.between(begin, range.end)});
      }
      plan_.servers[rank].resident_key_rows = normalize(std::move(chosen));
    }
  }

  // Each document's queries of the chunk and their keys, cut into rectangles; those without a
  // visible pair fall away.
  std::vector<AttentionTask> cut_tiles() {
    std::vector<AttentionTask> tiles;
    for (const DocumentPart& part : layout_.document_parts(layout_.chunk(plan_.chunk))) {
      tiles.push_back({part.document, part.positions, {0, part.positions.end}});
    }
    const int64_t cuts = tiles.empty() ? 0 : random_.between(0, options_.max_tasks);
    for (int64_t cut = 0; cut < cuts; ++cut) {
      AttentionTask& first = tiles[random_.below(tiles.size())];
      AttentionTask second = first;
      const bool cut_keys = random_.below(2) == 0;
      Range& lower = cut_keys ? first.keys : first.queries;
      Range& upper = cut_keys ? second.keys : second.queries;
      if (lower.size() < 2) continue;
      lower.end = upper.begin = random_cut(lower);
      if (visible_pairs(second.queries, second.keys) == 0) continue;
      if (visible_pairs(first.queries, first.keys) == 0) {
        first = second;
      } else {
        tiles.push_back(second);
      }
    }
    return tiles;
  }

  // A position inside a range of two or more: a block border if there is one and chance wills.
  int64_t random_cut(const Range& range) {
    const int64_t cut = random_.between(range.begin + 1, range.end - 1);
    const int64_t block = cut / kBlockTokens * kBlockTokens;
    return block > range.begin && random_.below(2) == 0 ? block : cut;
  }

  void place(const std::vector<AttentionTask>& tiles) {
    std::vector<size_t> servers;
    const size_t certain = random_.below(plan_.servers.size());
    for (size_t rank = 0; rank < plan_.servers.size(); ++rank) {
      if (rank == certain || random_.below(2) == 0) servers.push_back(rank);
    }
    for (const int64_t idx : random_.permutation(static_cast<int64_t>(tiles.size()))) {
      const size_t rank = servers[random_.below(servers.size())];
      plan_.servers[rank].tasks.push_back(tiles[static_cast<size_t>(idx)]);
    }
  }

  // The number of out rounds after which the server holds the inputs of each of its tasks.
  std::vector<int> rounds_until_ready(size_t rank) const {
    const auto server = static_cast<int>(rank);
    IntervalSet queries(rows_held_at_start(layout_, plan_, server, RowKind::kQuery));
    IntervalSet keys(rows_held_at_start(layout_, plan_, server, RowKind::kKeyValue));
    const std::vector<AttentionTask>& tasks = plan_.servers[rank].tasks;
    std::vector<int> ready(tasks.size(), std::numeric_limits<int>::max());
    for (int round = 0; round <= static_cast<int>(plan_.out.size()); ++round) {
      for (size_t idx = 0; idx < tasks.size(); ++idx) {
        const AttentionTask& task = tasks[idx];
        if (queries.contains(layout_.to_line(task.document, task.queries)) &&
            keys.contains(layout_.to_line(task.document, task.keys))) {
          ready[idx] = std::min(ready[idx], round);
        }
      }
      if (round == static_cast<int>(plan_.out.size())) break;
      for (const Transfer& transfer : plan_.out[static_cast<size_t>(round)].transfers) {
        if (transfer.destination != server) continue;
        (transfer.kind == RowKind::kQuery ? queries : keys).insert(transfer.line);
      }
    }
    return ready;
  }

  // Sometimes orders the tasks by arrival of their inputs, and cuts them into groups.
  void form_groups(size_t rank) {
    ServerPlan& server = plan_.servers[rank];
    std::vector<std::pair<int, AttentionTask>> tasks;  // (rounds until ready, task)
    const std::vector<int> ready = rounds_until_ready(rank);
    for (size_t idx = 0; idx < ready.size(); ++idx) {
      tasks.emplace_back(ready[idx], server.tasks[idx]);
    }
    if (random_.below(2) == 0) {
      std::stable_sort(tasks.begin(), tasks.end(),
                       [](const auto& a, const auto& b) { return a.first < b.first; });
    }
    const auto out_rounds = static_cast<int>(plan_.out.size());
    for (size_t idx = 0; idx < tasks.size(); ++idx) {
      const auto task = static_cast<int64_t>(idx);
      server.tasks[idx] = tasks[idx].second;
      if (idx == 0 || chance(0.4)) {
        const int before = idx == 0 ? 0 : server.groups.back().after_round;
        server.groups.push_back({before, task, task});
      }
      LaunchGroup& group = server.groups.back();
      group.task_end = task + 1;
      group.after_round = std::max(group.after_round, tasks[idx].first);
      if (chance(0.1)) group.after_round = std::min(group.after_round + 1, out_rounds);
    }
  }

  const TokenLayout& layout_;
  const RandomPlanOptions& options_;
  RandomStream random_;
  AttentionPlan plan_;
};

// Key rows that this plan leaves on each server, added to those left before.
void add_left_rows(const TokenLayout& layout, const AttentionPlan& plan,
                   std::vector<std::vector<Range>>* left) {
  for (size_t rank = 0; rank < left->size(); ++rank) {
    const auto held = key_rows_held_at_end(layout, plan, static_cast<int>(rank));
    (*left)[rank].insert((*left)[rank].end(), held.begin(), held.end());
  }
}

}  // namespace

AttentionPlan random_plan(const TokenLayout& layout, int chunk, Direction direction, uint64_t seed,
                          const RandomPlanOptions& options) {
  return RandomPlanner(layout, chunk, direction, seed, options).make();
}

std::vector<ChunkPlans> random_chunk_plans(const TokenLayout& layout, uint64_t seed,
                                           const RandomPlanOptions& options, int resident_band) {
  const int chunks = layout.num_chunks();
  std::vector<ChunkPlans> plans(static_cast<size_t>(chunks));
  for (const Direction direction : {Direction::kForward, Direction::kBackward}) {
    RandomPlanOptions chunk_options = options;
    int band_before = -1;
    for (int step = 0; step < chunks; ++step) {
      const bool forward = direction == Direction::kForward;
      const int chunk = forward ? step : chunks - 1 - step;
      const int band = resident_band > 0 ? chunk / resident_band : 0;
      if (resident_band > 0 && band != band_before) {
        chunk_options.resident_candidates.assign(static_cast<size_t>(layout.num_ranks()), {});
      }
      band_before = band;
      AttentionPlan plan = random_plan(layout, chunk, direction, seed, chunk_options);
      if (resident_band > 0) add_left_rows(layout, plan, &chunk_options.resident_candidates);
      (forward ? plans[static_cast<size_t>(chunk)].forward
               : plans[static_cast<size_t>(chunk)].backward) = std::move(plan);
    }
  }
  return plans;
}

}  // namespace longspan
