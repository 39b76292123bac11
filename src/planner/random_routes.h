// Random routes for the rows of a plan whose tasks are placed; part of random_plan.h.
//
// Rows are cut into *atoms* that have the same home and the same users. Each atom travels a random
// tree: outward from its holders to every server that needs it, some through ranks that do not;
// back from every server that has a part of its result to its home, with merges and detours on the
// way.
//
//   RandomRoutes(layout, options, &random).route(&plan);   // sets plan.out and plan.back
//
// Uses the caller's random stream; one thread.
#pragma once

#include "base/random.h"
#include "planner/attention_plan.h"
#include "planner/random_plan.h"

namespace longspan {

class RandomRoutes {
 public:
  RandomRoutes(const TokenLayout& layout, const RandomPlanOptions& options, RandomStream* random)
      : layout_(layout), options_(options), random_(*random) {}

  // Requires the buffer rows of finish_plan.
  void route(AttentionPlan* plan);

 private:
  // Rows with one home, and the ranks concerned.
  struct Atom {
    Range line;
    int home = 0;
    std::vector<bool> holds;  // out: holds at the start; back: has a part of the result
    std::vector<bool> needs;  // out only
  };

  bool chance(double probability) { return random_.uniform() < probability; }
  size_t pick(const std::vector<size_t>& choices) { return choices[random_.below(choices.size())]; }
  std::vector<Atom> cut_into_atoms(const std::vector<std::vector<Range>>& holds,
                                   const std::vector<std::vector<Range>>& needs);
  void route_out(const AttentionPlan& plan, RowKind kind, std::vector<Round>* rounds);
  void send_out(const Atom& atom, RowKind kind, std::vector<Round>* rounds);
  void route_back(const AttentionPlan& plan, RowKind kind, std::vector<Round>* rounds);
  void send_back(Atom atom, RowKind kind, std::vector<Round>* rounds);
  void join_neighbours(Round* round);

  const TokenLayout& layout_;
  const RandomPlanOptions& options_;
  RandomStream& random_;
};

}  // namespace longspan
