#include "planner/plan_verifier.h"

#include <gtest/gtest.h>

#include <map>
#include <string>

#include "base/error.h"
#include "planner/home_plan.h"
#include "planner/plan_oracle.h"
#include "planner/plan_verifier_cases.h"

namespace longspan {
namespace {

TEST(PlanVerifier, AcceptsRandomPlansAsTheOracleDoes) {
  for (uint64_t seed = 0; seed < 1500; ++seed) {
    const auto [layout, plan] = random_case(seed);
    ASSERT_EQ(complaint(layout, plan), "") << "seed " << seed;
    ASSERT_EQ(find_violation_by_token(layout, plan), "") << "seed " << seed;
  }
}

void nudge(Range* range, const Range& inside, RandomStream& random) {
  int64_t& end = random.below(2) == 0 ? range->begin : range->end;
  end += random.between(1, 3) * (random.below(2) == 0 ? 1 : -1);
  *range = intersect(*range, inside);
  if (range->empty()) *range = {inside.begin, inside.begin + 1};
}

// Changes what the plan means, and keeps its form.
void disturb_task(const TokenLayout& layout, AttentionPlan* plan, RandomStream& random) {
  ServerPlan* server = random_busy_server(plan, random);
  if (server == nullptr) return;
  if (random.below(4) == 0) {
    LaunchGroup& group = server->groups.front();
    group.after_round = std::max(group.after_round - 1, 0);
    return;
  }
  AttentionTask& task = server->tasks[random.below(server->tasks.size())];
  Range& range = random.below(2) == 0 ? task.queries : task.keys;
  nudge(&range, {0, layout.document_tokens(task.document)}, random);
}

void disturb_transfer(const TokenLayout& layout, AttentionPlan* plan, RandomStream& random) {
  std::vector<Round>* leg = random.below(2) == 0 ? &plan->out : &plan->back;
  size_t round = 0;
  Transfer* transfer = random_transfer(leg, random, &round);
  if (transfer == nullptr || layout.num_ranks() < 2) return;
  const auto other_rank = [&](int rank) {
    const auto step = static_cast<int>(random.between(1, layout.num_ranks() - 1));
    return (rank + step) % layout.num_ranks();
  };
  switch (random.below(6)) {
    case 0:
      transfer->source = other_rank(transfer->destination);
      return;
    case 1:
      transfer->destination = other_rank(transfer->source);
      return;
    case 2:
      nudge(&transfer->line, {0, layout.num_tokens()}, random);
      return;
    case 3:
      if (leg == &plan->back) transfer->partial = !transfer->partial;
      return;
    case 4:
      (*leg)[random.below(leg->size())].transfers.push_back(Transfer(*transfer));
      return;
    default:
      std::swap((*leg)[round], (*leg)[random.below(leg->size())]);
      return;
  }
}

// The verifier accepts a disturbed plan exactly if the oracle does.
TEST(PlanVerifier, JudgesDisturbedPlansAsTheOracleDoes) {
  std::map<std::string, int> verdicts;
  for (uint64_t seed = 0; seed < 4000; ++seed) {
    auto [layout, plan] = random_case(seed);
    RandomStream random(seed, "disturbance");
    random.below(3) == 0 ? disturb_task(layout, &plan, random)
                         : disturb_transfer(layout, &plan, random);
    finish_plan(layout, &plan);
    const std::string violation = find_violation_by_token(layout, plan);
    verdicts[violation] += 1;
    ASSERT_EQ(complaint(layout, plan).empty(), violation.empty())
        << "seed " << seed << "\noracle: " << violation
        << "\nverifier: " << complaint(layout, plan);
  }
  EXPECT_GE(verdicts.size(), 8U);  // the kinds of violation that the disturbances reach
  for (const auto& [violation, times] : verdicts) {
    std::cout << times << " x " << (violation.empty() ? "valid" : violation) << "\n";
  }
}

TEST(PlanVerifier, NamesWhatIsWrong) {
  const auto layout = TokenLayout::make({512}, {.chunks = 1, .shares = {1, 1}});
  AttentionPlan plan = home_plan(layout, 0, Direction::kForward);
  plan.out[0].transfers[0].line.end -= 1;
  EXPECT_EQ(complaint(layout, plan),
            "attention plan, chunk 0, forward: server 1: task of document 0, queries [256, 512) x "
            "keys [0, 512) starts after 1 out rounds without key rows [255, 256)");
  plan = home_plan(layout, 0, Direction::kForward);
  plan.servers[1].tasks[0].keys.begin = 1;
  finish_plan(layout, &plan);
  EXPECT_EQ(complaint(layout, plan),
            "attention plan, chunk 0, forward: document 0: no task covers queries [256, 512) x "
            "keys [0, 1)");
}

TEST(PlanVerifier, BlockAlignmentIsRequiredOnDemand) {
  const auto layout = TokenLayout::make({700}, {.chunks = 1, .shares = {1}});
  AttentionPlan plan;
  plan.servers.resize(1);
  for (const int64_t cut : {int64_t{128}, int64_t{100}}) {
    plan.servers[0].tasks = {{0, {0, cut}, {0, cut}}, {0, {cut, 700}, {0, 700}}};
    plan.servers[0].groups = {{0, 0, 2}};
    finish_plan(layout, &plan);
    EXPECT_NO_THROW(verify_plan(layout, plan));
    if (cut == 128) {
      EXPECT_NO_THROW(verify_plan(layout, plan, {.require_block_alignment = true}));
    } else {
      EXPECT_THROW(verify_plan(layout, plan, {.require_block_alignment = true}), InternalError);
    }
  }
}

}  // namespace
}  // namespace longspan
