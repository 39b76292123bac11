// Random plans to judge, and ways to pick a part of one; for the tests of the verifier.
//
//   const auto [layout, plan] = random_case(seed);
//   EXPECT_EQ(complaint(layout, plan), "");
//
// Layouts are small enough for the oracle (plan_oracle.h). Pure.
#pragma once

#include <string>
#include <vector>

#include "base/error.h"
#include "planner/plan_verifier.h"
#include "planner/planner_test_layouts.h"
#include "planner/random_plan.h"

namespace longspan {

// The verifier's message, empty if it accepts the plan.
inline std::string complaint(const TokenLayout& layout, const AttentionPlan& plan) {
  try {
    verify_plan(layout, plan);
  } catch (const InternalError& error) {
    return error.what();
  }
  return "";
}

struct Case {
  TokenLayout layout;
  AttentionPlan plan;
};

// A random plan on a layout small enough for the oracle, sometimes with resident rows.
inline Case random_case(uint64_t seed) {
  RandomStream random(seed, "plan verifier");
  const TokenLayout layout =
      random_layout(random, {.max_documents = 5, .max_document_tokens = 60, .max_ranks = 4});
  const auto chunk = static_cast<int>(random.between(0, layout.num_chunks() - 1));
  const auto direction = random.below(2) == 0 ? Direction::kForward : Direction::kBackward;
  RandomPlanOptions options{.max_tasks = 8};
  if (random.below(2) == 0) {
    options.resident_candidates.assign(static_cast<size_t>(layout.num_ranks()),
                                       {{0, layout.num_tokens()}});
  }
  return {layout, random_plan(layout, chunk, direction, seed, options)};
}

// A random transfer of a leg, its round in `round_idx`; nullptr if the leg has none.
inline Transfer* random_transfer(std::vector<Round>* leg, RandomStream& random, size_t* round_idx) {
  std::vector<size_t> rounds;
  for (size_t idx = 0; idx < leg->size(); ++idx) {
    if (!(*leg)[idx].transfers.empty()) rounds.push_back(idx);
  }
  if (rounds.empty()) return nullptr;
  *round_idx = rounds[random.below(rounds.size())];
  std::vector<Transfer>& transfers = (*leg)[*round_idx].transfers;
  return &transfers[random.below(transfers.size())];
}

inline ServerPlan* random_busy_server(AttentionPlan* plan, RandomStream& random) {
  std::vector<ServerPlan*> busy;
  for (ServerPlan& server : plan->servers) {
    if (!server.tasks.empty()) busy.push_back(&server);
  }
  return busy.empty() ? nullptr : busy[random.below(busy.size())];
}

}  // namespace longspan
