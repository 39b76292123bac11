#include "planner/plan_verifier.h"

#include <array>
#include <string_view>
#include <tuple>

#include "base/check.h"
#include "planner/coverage.h"
#include "planner/held_rows.h"
#include "planner/interval_set.h"
#include "planner/plan_text.h"

namespace longspan {
namespace {

// The first of `rows` that `set` lacks, for messages.
Range first_missing(const IntervalSet& set, const Range& rows) {
  const auto missing = subtract({rows}, set.ranges());
  return missing.empty() ? Range{} : missing.front();
}

// One IntervalSet for each kind of row and rank.
class RankRows {
 public:
  explicit RankRows(size_t num_ranks) {
    for (auto& sets : sets_) sets.resize(num_ranks);
  }
  IntervalSet& of(RowKind kind, int rank) {
    return sets_[static_cast<size_t>(kind)][static_cast<size_t>(rank)];
  }

 private:
  std::array<std::vector<IntervalSet>, 2> sets_;
};

class PlanVerifier {
 public:
  PlanVerifier(const TokenLayout& layout, const AttentionPlan& plan, const VerifyOptions& options)
      : layout_(layout), plan_(plan), options_(options) {}

  void verify() const {
    require(plan_.chunk >= 0 && plan_.chunk < layout_.num_chunks(), "chunk ", plan_.chunk, " of ",
            layout_.num_chunks());
    require(num_ranks() == layout_.num_ranks(), plan_.servers.size(), " servers for ",
            layout_.num_ranks(), " ranks");
    for (int rank = 0; rank < num_ranks(); ++rank) {
      for (const AttentionTask& task : server(rank).tasks) verify_task(rank, task);
      verify_groups(rank);
      verify_resident_rows(rank);
    }
    verify_buffers();
    verify_coverage(layout_, plan_);
    for (size_t round = 0; round < plan_.out.size(); ++round) {
      verify_round("out", round, plan_.out[round]);
    }
    for (size_t round = 0; round < plan_.back.size(); ++round) {
      verify_round("back", round, plan_.back[round]);
    }
    play_out_leg();
    play_back_leg();
  }

 private:
  template <typename... Parts>
  static void require(bool condition, const Parts&... parts) {
    if (!condition) throw InternalError(text(parts...));
  }

  int num_ranks() const { return static_cast<int>(plan_.servers.size()); }
  const ServerPlan& server(int rank) const { return plan_.servers[static_cast<size_t>(rank)]; }

  void verify_task(int rank, const AttentionTask& task) const {
    require(task.document >= 0 && task.document < layout_.num_documents(), "server ", rank,
            ": task of ", task, ": there are ", layout_.num_documents(), " documents");
    const Range document = layout_.document(task.document);
    const Range chunk = layout_.chunk(plan_.chunk);
    const Range queries = shift(intersect(document, chunk), -document.begin);
    require(!task.queries.empty() && queries.contains(task.queries), "server ", rank, ": task of ",
            task, ": the chunk's queries of this document are ", queries);
    const Range keys{0, queries.end};
    require(!task.keys.empty() && keys.contains(task.keys), "server ", rank, ": task of ", task,
            ": the keys that exist by this chunk are ", keys);
    require(visible_pairs(task.queries, task.keys) > 0, "server ", rank, ": task of ", task,
            " has no pair with key <= query");
    if (!options_.require_block_alignment) return;
    for (const int64_t cut :
         {task.queries.begin, task.queries.end, task.keys.begin, task.keys.end}) {
      require(aligned(document, cut), "server ", rank, ": task of ", task, ": the cut at ", cut,
              " is neither a multiple of ", kBlockTokens, " nor a document's or piece's end");
    }
  }

  bool aligned(const Range& document, int64_t position) const {
    if (position % kBlockTokens == 0 || position == document.size()) return true;
    const int64_t line = document.begin + position;
    const Home home = layout_.home(line);
    return layout_.piece(home.chunk, home.rank).begin == line;
  }

  void verify_groups(int rank) const {
    int64_t task = 0;
    int rounds = 0;
    for (const LaunchGroup& group : server(rank).groups) {
      require(group.task_begin == task && group.task_end > task, "server ", rank,
              ": a launch group of tasks ", Range{group.task_begin, group.task_end},
              " follows the tasks up to ", task);
      require(
          group.after_round >= rounds && group.after_round <= static_cast<int>(plan_.out.size()),
          "server ", rank, ": a launch group waits for ", group.after_round,
          " out rounds, the one before it for ", rounds, ", and there are ", plan_.out.size());
      task = group.task_end;
      rounds = group.after_round;
    }
    const auto tasks = static_cast<int64_t>(server(rank).tasks.size());
    require(task == tasks, "server ", rank, ": the launch groups hold ", task, " of ", tasks,
            " tasks");
  }

  void verify_resident_rows(int rank) const {
    const std::vector<Range>& rows = server(rank).resident_key_rows;
    require(normalize(rows) == rows, "server ", rank, ": resident key rows are not normalized");
    // Forward runs chunks in order, backward in reverse: there a later chunk may have left rows of
    // this one.
    const Range chunk = layout_.chunk(plan_.chunk);
    const int64_t end = plan_.direction == Direction::kForward ? chunk.begin : chunk.end;
    for (const Range& range : rows) {
      require(Range({0, end}).contains(range), "server ", rank, ": resident key rows ", range,
              " are not rows before ", end);
    }
    const auto home = home_rows(layout_, plan_.chunk, rank, RowKind::kKeyValue);
    const auto own = intersect(rows, home);
    require(own.empty(), "server ", rank, ": resident key rows ", own.empty() ? Range{} : own[0],
            " are at home there");
  }

  void verify_buffers() const {
    AttentionPlan derived = plan_;
    finish_plan(layout_, &derived);
    for (int rank = 0; rank < num_ranks(); ++rank) {
      for (const RowKind kind : {RowKind::kQuery, RowKind::kKeyValue}) {
        const auto& rows = buffer_rows(server(rank), kind);
        const auto& expected = buffer_rows(derived.servers[static_cast<size_t>(rank)], kind);
        require(rows == expected, "server ", rank, ": its ", kind, " rows are ", total_size(rows),
                " in ", rows.size(), " ranges; its tasks use ", total_size(expected), " in ",
                expected.size());
      }
    }
  }

  // What can be said of a round's transfers without knowing who holds what.
  void verify_round(std::string_view leg, size_t round_idx, const Round& round) const {
    const Transfer* before = nullptr;
    for (const Transfer& transfer : round.transfers) {
      const auto check = [&](bool condition, const auto&... parts) {
        require(condition, leg, " round ", round_idx, ": ", transfer, ": ", parts...);
      };
      const auto is_rank = [this](int rank) { return rank >= 0 && rank < num_ranks(); };
      check(is_rank(transfer.source) && is_rank(transfer.destination), "there are ", num_ranks(),
            " ranks");
      check(transfer.source != transfer.destination, "a rank sends to itself");
      const Range chunk = layout_.chunk(plan_.chunk);
      const Range rows = transfer.kind == RowKind::kQuery ? chunk : Range{0, chunk.end};
      check(!transfer.line.empty() && rows.contains(transfer.line), "rows of this plan are ", rows);
      const Home home = layout_.home(transfer.line.begin);
      const Range piece = layout_.piece(home.chunk, home.rank);
      check(piece.contains(transfer.line), "leaves its home piece ", piece);
      if (leg == "out") {
        check(!transfer.partial, "inputs are never partial");
      } else {
        check(transfer.kind == RowKind::kQuery || plan_.direction == Direction::kBackward,
              "forward has no results for keys");
      }
      if (before != nullptr) {
        check(sort_key(*before) <= sort_key(transfer), "not sorted, follows ", *before);
        check(before->line.end <= transfer.line.begin || !same_message(*before, transfer),
              "overlaps ", *before);
      }
      before = &transfer;
    }
  }

  static std::tuple<int, int, RowKind, int64_t> sort_key(const Transfer& transfer) {
    return {transfer.source, transfer.destination, transfer.kind, transfer.line.begin};
  }

  static bool same_message(const Transfer& a, const Transfer& b) {
    return std::tie(a.source, a.destination, a.kind) == std::tie(b.source, b.destination, b.kind);
  }

  void play_out_leg() const {
    RankRows held(plan_.servers.size());
    for (int rank = 0; rank < num_ranks(); ++rank) {
      for (const RowKind kind : {RowKind::kQuery, RowKind::kKeyValue}) {
        held.of(kind, rank) = IntervalSet(rows_held_at_start(layout_, plan_, rank, kind));
      }
    }
    verify_group_inputs(0, held);
    for (size_t round = 0; round < plan_.out.size(); ++round) {
      for (const Transfer& transfer : plan_.out[round].transfers) {
        const IntervalSet& source = held.of(transfer.kind, transfer.source);
        require(source.contains(transfer.line), "out round ", round, ": ", transfer,
                ": the source does not hold rows ", first_missing(source, transfer.line),
                " before this round");
      }
      for (const Transfer& transfer : plan_.out[round].transfers) {
        IntervalSet& destination = held.of(transfer.kind, transfer.destination);
        require(!destination.intersects(transfer.line), "out round ", round, ": ", transfer,
                ": the destination holds some of these rows already");
        destination.insert(transfer.line);
      }
      verify_group_inputs(static_cast<int>(round) + 1, held);
    }
  }

  // The inputs of the groups that start after this number of rounds.
  void verify_group_inputs(int rounds, RankRows& held) const {
    for (int rank = 0; rank < num_ranks(); ++rank) {
      for (const LaunchGroup& group : server(rank).groups) {
        if (group.after_round != rounds) continue;
        for (int64_t idx = group.task_begin; idx < group.task_end; ++idx) {
          verify_task_inputs(rank, server(rank).tasks[static_cast<size_t>(idx)], rounds, held);
        }
      }
    }
  }

  void verify_task_inputs(int rank, const AttentionTask& task, int rounds, RankRows& held) const {
    for (const RowKind kind : {RowKind::kQuery, RowKind::kKeyValue}) {
      const Range& positions = kind == RowKind::kQuery ? task.queries : task.keys;
      const Range rows = layout_.to_line(task.document, positions);
      const IntervalSet& here = held.of(kind, rank);
      require(here.contains(rows), "server ", rank, ": task of ", task, " starts after ", rounds,
              " out rounds without ", kind, " rows ", first_missing(here, rows));
    }
  }

  void play_back_leg() const {
    RankRows results(plan_.servers.size());
    for (const RowKind kind : result_kinds(plan_.direction)) {
      for (int rank = 0; rank < num_ranks(); ++rank) {
        results.of(kind, rank) = IntervalSet(buffer_rows(server(rank), kind));
      }
    }
    const std::array<IntervalSet, 2> with_other_parts = {
        IntervalSet(rows_with_other_parts(layout_, plan_, RowKind::kQuery)),
        IntervalSet(rows_with_other_parts(layout_, plan_, RowKind::kKeyValue))};
    for (size_t round = 0; round < plan_.back.size(); ++round) {
      RankRows sent(plan_.servers.size());
      for (const Transfer& transfer : plan_.back[round].transfers) {
        IntervalSet& source = results.of(transfer.kind, transfer.source);
        require(source.contains(transfer.line), "back round ", round, ": ", transfer,
                ": the source has no result, or none left, for rows ",
                first_missing(source, transfer.line));
        const auto& several = with_other_parts[static_cast<size_t>(transfer.kind)];
        require(transfer.partial || !several.intersects(transfer.line), "back round ", round, ": ",
                transfer, ": other parts of these rows exist, but it is not marked partial");
        source.erase(transfer.line);
        sent.of(transfer.kind, transfer.source).insert(transfer.line);
      }
      for (const Transfer& transfer : plan_.back[round].transfers) {
        require(!sent.of(transfer.kind, transfer.destination).intersects(transfer.line),
                "back round ", round, ": ", transfer,
                ": the destination sends some of these rows in the same round");
        results.of(transfer.kind, transfer.destination).insert(transfer.line);
      }
    }
    for (const RowKind kind : result_kinds(plan_.direction)) verify_results(kind, results);
  }

  // At the end, results are at home and nowhere else; every query of the chunk has one. (The latter
  // follows from coverage, as results only move; it stands here as the promise of the plan.)
  void verify_results(RowKind kind, RankRows& results) const {
    for (int rank = 0; rank < num_ranks(); ++rank) {
      const auto home = home_rows(layout_, plan_.chunk, rank, kind);
      const auto stray = subtract(results.of(kind, rank).ranges(), home);
      require(stray.empty(), "after the back leg rank ", rank, " holds results for ", kind,
              " rows ", stray.empty() ? Range{} : stray[0], " of another home");
      if (kind == RowKind::kKeyValue) continue;
      for (const Range& rows : home) {
        const IntervalSet& here = results.of(kind, rank);
        require(here.contains(rows), "after the back leg rank ", rank, " lacks the results of its ",
                "query rows ", first_missing(here, rows));
      }
    }
  }

  const TokenLayout& layout_;
  const AttentionPlan& plan_;
  const VerifyOptions& options_;
};

// Key rows that the plans run so far in a band have left on each rank.
class LeftRows {
 public:
  explicit LeftRows(const TokenLayout& layout)
      : layout_(layout), left_(static_cast<size_t>(layout.num_ranks())) {}

  void verify_and_add(const AttentionPlan& plan) {
    for (size_t rank = 0; rank < left_.size(); ++rank) {
      for (const Range& rows : plan.servers[rank].resident_key_rows) {
        if (!left_[rank].contains(rows)) {
          throw InternalError(text("attention plan, chunk ", plan.chunk, ", ", plan.direction,
                                   ": server ", rank, ": resident key rows ",
                                   first_missing(left_[rank], rows),
                                   " were not left there by a plan run before in this band"));
        }
      }
      const auto held = key_rows_held_at_end(layout_, plan, static_cast<int>(rank));
      for (const Range& rows : held) left_[rank].insert(rows);
    }
  }

 private:
  const TokenLayout& layout_;
  std::vector<IntervalSet> left_;
};

}  // namespace

void verify_plan(const TokenLayout& layout, const AttentionPlan& plan,
                 const VerifyOptions& options) {
  try {
    PlanVerifier(layout, plan, options).verify();
  } catch (const InternalError& error) {
    throw InternalError(
        text("attention plan, chunk ", plan.chunk, ", ", plan.direction, ": ", error.what()));
  }
}

void verify_chunk_plans(const TokenLayout& layout, const std::vector<ChunkPlans>& plans, int band,
                        const VerifyOptions& options) {
  LONGSPAN_CHECK(static_cast<int>(plans.size()) == layout.num_chunks() && band >= 1, "plans of ",
                 plans.size(), " chunks for a layout of ", layout.num_chunks(), ", band ", band);
  for (int first = 0; first < layout.num_chunks(); first += band) {
    const int end = std::min(first + band, layout.num_chunks());
    LeftRows left_by_forward(layout);
    for (int chunk = first; chunk < end; ++chunk) {
      const AttentionPlan& plan = plans[static_cast<size_t>(chunk)].forward;
      verify_plan(layout, plan, options);
      left_by_forward.verify_and_add(plan);
    }
    LeftRows left_by_backward(layout);
    for (int chunk = end - 1; chunk >= first; --chunk) {
      const AttentionPlan& plan = plans[static_cast<size_t>(chunk)].backward;
      verify_plan(layout, plan, options);
      left_by_backward.verify_and_add(plan);
    }
  }
}

}  // namespace longspan
