#include "planner/attention_planner.h"

#include <algorithm>
#include <chrono>
#include <functional>
#include <optional>
#include <utility>

#include "base/check.h"
#include "planner/launch_groups.h"
#include "planner/pass_balance.h"
#include "planner/pass_bands.h"
#include "planner/pass_refine.h"
#include "planner/pass_tiles.h"
#include "planner/planner_scratch.h"
#include "planner/relay.h"
#include "planner/tile_draft.h"
#include "planner/tile_routing.h"

namespace longspan {
namespace {

using Clock = std::chrono::steady_clock;

// Tolerances to try where the exchange shows: moving less costs balance and saves bytes.
constexpr double kWiderTolerances[] = {0.05, 0.2, 0.8};
// Exchange that shows for less than this share of the makespan is let be: the other candidates
// seldom gain as much.
constexpr double kLeastExposure = 0.1;

// Exchange that shows for more than this is worth a little balance.
constexpr double kLateShare = 0.01;
constexpr double kTimelyTolerances[] = {0.01, 0.02};

// A small plan this near to the lower bound is good enough.
constexpr double kNearBound = 0.02;
// Drafts that may be judged to refine one plan: some ten milliseconds.
constexpr int kMaxTrials = 800;

struct Candidate {
  TileDraft draft;
  RoutedPlan routed;
  PlanPrediction prediction;
  // The passes that made a difference and could be left out.
  PassSwitches changed = {.bands = false, .balance = false, .tiles = false};

  // Whether exchange shows for more than this share of the computing.
  bool is_exposed(double share) const {
    return prediction.makespan_s > (1 + share) * prediction.compute_s;
  }
};

class Planner {
 public:
  Planner(const TokenLayout& layout, int chunk, Direction direction, const PlanningCosts& costs,
          const AttentionPlannerOptions& options, PlannerScratch* scratch)
      : layout_(layout),
        costs_(costs),
        options_(options),
        scratch_(*scratch),
        chunk_(chunk),
        direction_(direction) {}

  PlannedAttention run() {
    TileDraft home = home_draft();
    home_load_s_ = home.loads_s();
    home_is_incomplete_ = home.has_unplaced();
    Candidate best = balanced(std::move(home), options_.passes, options_.epsilon);
    if (options_.passes.choose) {
      try_other_exchange(&best);
      prefer_home(&best);
    }
    if (options_.passes.refine && is_small(best.draft)) refine_small(&best);
    check_memory(best);
    scratch_.give_back(&best.draft);
    return {std::move(best.routed.plan), std::move(best.prediction), times_};
  }

 private:
  template <typename Body>
  void timed(std::string_view name, const Body& body) {
    const auto start = Clock::now();
    body();
    const double seconds = std::chrono::duration<double>(Clock::now() - start).count();
    for (PassTime& time : times_) {
      if (time.name != name) continue;
      time.seconds += seconds;
      return;
    }
    times_.push_back({name, seconds});
  }

  // Every query at home. Made anew for each candidate: most plans have but one.
  TileDraft home_draft() {
    return TileDraft(layout_, chunk_, direction_, costs_, scratch_.take_tile_list());
  }

  Candidate balanced(TileDraft home, const PassSwitches& passes, double epsilon,
                     bool keys_in_time = false) {
    Candidate candidate{std::move(home), {}, {}};
    TileDraft& draft = candidate.draft;
    if (passes.bands) {
      timed("bands", [&] { candidate.changed.bands = place_in_bands(&draft); });
    }
    if (passes.balance || home_is_incomplete_) {
      timed("balance", [&] { balance(epsilon, &draft, keys_in_time); });
    }
    if (passes.tiles) {
      timed("tiles", [&] {
        candidate.changed.tiles = share_keys(&draft);
        if (candidate.changed.tiles && passes.balance) balance(epsilon, &draft, keys_in_time);
      });
    }
    route(passes.relay, &candidate);
    return candidate;
  }

  Candidate routed(TileDraft draft, bool relay) {
    Candidate candidate{std::move(draft), {}, {}};
    route(relay, &candidate);
    return candidate;
  }

  void route(bool relay, Candidate* candidate) {
    RoutedPlan& routed = candidate->routed;
    timed("route", [&] { routed = route_tiles(candidate->draft); });
    LegClocks legs = play_legs(routed.plan, costs_);
    if (relay)
      timed("relay", [&] { relay_rows(layout_, costs_, &routed, &legs, &scratch_.relay); });
    timed("launch", [&] { fill_launches(candidate->draft.pass_costs().attention, &routed); });
    timed("predict", [&] { candidate->prediction = predict(layout_, routed, costs_, legs); });
  }

  double bytes_over_cap(const Candidate& candidate) const {
    if (costs_.memory_cap_bytes <= 0) return 0;
    double over = 0;
    for (const ServerPrediction& server : candidate.prediction.servers) {
      over = std::max(over, server.memory_bytes - costs_.memory_cap_bytes);
    }
    return over;
  }

  // Whatever fits goes before what does not; then the makespan counts.
  bool is_better(const Candidate& one, const Candidate& other) const {
    return std::pair(bytes_over_cap(one), one.prediction.makespan_s) <
           std::pair(bytes_over_cap(other), other.prediction.makespan_s);
  }

  // Returns whether the other one is better.
  bool keep_better(Candidate other, Candidate* best) {
    const bool better = is_better(other, *best);
    if (better) std::swap(*best, other);
    scratch_.give_back(&other.draft);
    return better;
  }

  void check_memory(const Candidate& candidate) const {
    for (size_t rank = 0; rank < candidate.prediction.servers.size(); ++rank) {
      const double needed = candidate.prediction.servers[rank].memory_bytes;
      if (costs_.memory_cap_bytes <= 0 || needed <= costs_.memory_cap_bytes) continue;
      throw UserError(text("attention server ", rank, " needs ", needed,
                           " bytes for rows of other ranks, but may take ", costs_.memory_cap_bytes,
                           " (memory cap); raise the cap, cut the micro-batch into more chunks, or "
                           "use more servers"));
    }
  }

  void try_other_exchange(Candidate* best) {
    PassSwitches passes = options_.passes;
    const bool is_over_cap = bytes_over_cap(*best) > 0;
    if (best->is_exposed(kLateShare) || is_over_cap) {
      try_without(&PassSwitches::bands, &passes, best);
      try_timely_keys(passes, best);
    }
    if (best->is_exposed(kLeastExposure) || is_over_cap) {
      try_without(&PassSwitches::tiles, &passes, best);
      try_wider_tolerances(passes, best);
    }
  }

  // Leaves a pass out for good if that is better.
  void try_without(bool PassSwitches::*pass, PassSwitches* passes, Candidate* best) {
    if (!(best->changed.*pass)) return;
    passes->*pass = false;
    if (!keep_better(balanced(home_draft(), *passes, options_.epsilon), best)) passes->*pass = true;
  }

  // Servers that wait for keys may be few: then the others had better take their work.
  void try_timely_keys(const PassSwitches& passes, Candidate* best) {
    if (!passes.balance) return;
    for (const double epsilon : kTimelyTolerances) {
      if (epsilon <= options_.epsilon || !best->is_exposed(kLateShare)) continue;
      keep_better(balanced(home_draft(), passes, epsilon, /*keys_in_time=*/true), best);
    }
  }

  void try_wider_tolerances(const PassSwitches& passes, Candidate* best) {
    for (const double epsilon : kWiderTolerances) {
      if (epsilon <= options_.epsilon) continue;
      if (!keep_better(balanced(home_draft(), passes, epsilon), best)) return;
    }
  }

  void prefer_home(Candidate* best) {
    if (home_is_incomplete_) return;
    double busiest_s = 0;
    for (int rank = 0; rank < layout_.num_ranks(); ++rank) {
      const auto idx = static_cast<size_t>(rank);
      const double base = costs_.base_s.empty() ? 0 : costs_.base_s[idx];
      if (home_load_s_[idx] > 0) {
        busiest_s = std::max(busiest_s, base + home_load_s_[idx] / costs_.speed[idx]);
      }
    }
    // The home plan's makespan is at least that: no need to look closer.
    if (best->prediction.makespan_s < busiest_s && bytes_over_cap(*best) <= 0) return;
    for (const bool relay : {false, true}) {
      if (relay && !options_.passes.relay) continue;
      Candidate home = routed(home_draft(), relay);
      if (!is_better(*best, home)) std::swap(*best, home);
    }
  }

  // Move by move from several beginnings, since each ends where no single move helps: the best plan
  // so far, the home plan, and everything on one server.
  void refine_small(Candidate* best) {
    const double bound_s = lower_bound_s(layout_, chunk_, direction_, costs_);
    const auto is_near_bound = [&] {
      return best->prediction.makespan_s <= (1 + kNearBound) * bound_s;
    };
    const auto makespan_of = [&](const TileDraft& trial) {
      return routed(trial, /*relay=*/false).prediction.makespan_s;
    };
    const TileDraft home = home_draft();
    std::vector<TileDraft> beginnings = {best->draft};
    if (!home_is_incomplete_) beginnings.push_back(home);
    for (int rank = 0; rank < layout_.num_ranks(); ++rank) {
      if (!home.is_server(rank)) continue;
      beginnings.push_back(home);
      for (size_t idx = 0; idx < home.tiles().size(); ++idx) beginnings.back().place(idx, rank);
    }
    int trials = kMaxTrials;
    for (TileDraft& draft : beginnings) {
      if (trials <= 0 || is_near_bound()) return;
      refine(makespan_of, &trials, &draft);
      keep_better(routed(std::move(draft), /*relay=*/false), best);
    }
  }

  const TokenLayout& layout_;
  const PlanningCosts& costs_;
  const AttentionPlannerOptions& options_;
  PlannerScratch& scratch_;
  const int chunk_;
  const Direction direction_;
  std::vector<double> home_load_s_;
  bool home_is_incomplete_ = false;  // some tile's home is no server: there is no home plan
  std::vector<PassTime> times_;
};

}  // namespace

PlannedAttention plan_attention(const TokenLayout& layout, int chunk, Direction direction,
                                const PlanningCosts& costs, const AttentionPlannerOptions& options,
                                PlannerScratch* scratch) {
  LONGSPAN_CHECK(options.epsilon >= 0, "epsilon ", options.epsilon);
  check_costs(costs, layout.num_ranks());
  PlannerScratch own;
  return Planner(layout, chunk, direction, costs, options, scratch != nullptr ? scratch : &own)
      .run();
}

}  // namespace longspan
