#include "planner/plan_verifier.h"

#include <gtest/gtest.h>

#include <functional>
#include <map>
#include <string>

#include "base/error.h"
#include "planner/home_plan.h"
#include "planner/plan_oracle.h"
#include "planner/plan_text.h"
#include "planner/planner_test_layouts.h"
#include "planner/random_plan.h"

namespace longspan {
namespace {

// The verifier's message, empty if it accepts the plan.
std::string complaint(const TokenLayout& layout, const AttentionPlan& plan) {
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
Case random_case(uint64_t seed) {
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

TEST(PlanVerifier, AcceptsRandomPlansAsTheOracleDoes) {
  for (uint64_t seed = 0; seed < 1500; ++seed) {
    const auto [layout, plan] = random_case(seed);
    ASSERT_EQ(complaint(layout, plan), "") << "seed " << seed;
    ASSERT_EQ(find_violation_by_token(layout, plan), "") << "seed " << seed;
  }
}

// A random transfer of a leg, its round in `round_idx`; nullptr if the leg has none.
Transfer* random_transfer(std::vector<Round>* leg, RandomStream& random, size_t* round_idx) {
  std::vector<size_t> rounds;
  for (size_t idx = 0; idx < leg->size(); ++idx) {
    if (!(*leg)[idx].transfers.empty()) rounds.push_back(idx);
  }
  if (rounds.empty()) return nullptr;
  *round_idx = rounds[random.below(rounds.size())];
  std::vector<Transfer>& transfers = (*leg)[*round_idx].transfers;
  return &transfers[random.below(transfers.size())];
}

ServerPlan* random_busy_server(AttentionPlan* plan, RandomStream& random) {
  std::vector<ServerPlan*> busy;
  for (ServerPlan& server : plan->servers) {
    if (!server.tasks.empty()) busy.push_back(&server);
  }
  return busy.empty() ? nullptr : busy[random.below(busy.size())];
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

using Corruption = std::function<bool(const TokenLayout&, AttentionPlan*, RandomStream&)>;

bool on_transfer(std::vector<Round>* leg, RandomStream& random,
                 const std::function<void(Round*, Transfer*)>& change) {
  size_t round = 0;
  Transfer* transfer = random_transfer(leg, random, &round);
  if (transfer == nullptr) return false;
  change(&(*leg)[round], transfer);
  return true;
}

bool on_server(AttentionPlan* plan, RandomStream& random,
               const std::function<void(ServerPlan*)>& change) {
  ServerPlan* server = random_busy_server(plan, random);
  if (server == nullptr) return false;
  change(server);
  return true;
}

void drop_transfer(Round* round, const Transfer* transfer) {
  round->transfers.erase(round->transfers.begin() + (transfer - round->transfers.data()));
}

using Corruptions = std::map<std::string, Corruption>;

// Each makes any valid plan invalid; false: not applicable to this plan.
Corruptions corrupt_tasks() {
  Corruptions all;
  all["drop the last task"] = [](const TokenLayout& layout, AttentionPlan* plan, RandomStream& r) {
    return on_server(plan, r, [&](ServerPlan* server) {
      server->tasks.pop_back();
      if (--server->groups.back().task_end == server->groups.back().task_begin) {
        server->groups.pop_back();
      }
      finish_plan(layout, plan);
    });
  };
  all["a task twice"] = [](const TokenLayout&, AttentionPlan* plan, RandomStream& r) {
    return on_server(plan, r, [](ServerPlan* server) {
      server->tasks.push_back(AttentionTask(server->tasks.back()));
      server->groups.back().task_end += 1;
    });
  };
  all["a task of a document that is not there"] = [](const TokenLayout& layout, AttentionPlan* plan,
                                                     RandomStream& r) {
    return on_server(
        plan, r, [&](ServerPlan* server) { server->tasks[0].document = layout.num_documents(); });
  };
  all["a task without visible pairs"] = [](const TokenLayout& layout, AttentionPlan* plan,
                                           RandomStream& r) {
    bool done = false;
    on_server(plan, r, [&](ServerPlan* server) {
      const AttentionTask& last = server->tasks.back();
      const Range chunk = layout.chunk(plan->chunk);
      const Range document = layout.document(last.document);
      const int64_t end = std::min(document.end, chunk.end) - document.begin;
      if (last.queries.end == end) return;
      server->tasks.push_back({last.document, last.queries, {end - 1, end}});
      server->groups.back().task_end += 1;
      done = true;
    });
    return done;
  };
  return all;
}

Corruptions corrupt_buffers_and_groups() {
  Corruptions all;
  all["query rows of the buffer"] = [](const TokenLayout&, AttentionPlan* plan, RandomStream& r) {
    return on_server(plan, r, [](ServerPlan* server) { server->query_rows.back().end += 1; });
  };
  all["key rows of the buffer"] = [](const TokenLayout&, AttentionPlan* plan, RandomStream& r) {
    return on_server(plan, r, [](ServerPlan* server) { server->key_rows.pop_back(); });
  };
  all["buffer rows split in two"] = [](const TokenLayout&, AttentionPlan* plan, RandomStream& r) {
    bool done = false;
    on_server(plan, r, [&](ServerPlan* server) {
      Range& last = server->key_rows.back();
      if (last.size() < 2) return;
      const Range tail{last.end - 1, last.end};
      last.end -= 1;
      server->key_rows.push_back(tail);
      done = true;
    });
    return done;
  };
  all["a group without its last task"] = [](const TokenLayout&, AttentionPlan* plan,
                                            RandomStream& r) {
    return on_server(plan, r, [](ServerPlan* server) { server->groups.back().task_end -= 1; });
  };
  all["an empty group"] = [](const TokenLayout&, AttentionPlan* plan, RandomStream& r) {
    return on_server(plan, r, [](ServerPlan* server) {
      LaunchGroup last = server->groups.back();
      last.task_begin = last.task_end;
      server->groups.push_back(last);
    });
  };
  all["a group that waits too long"] = [](const TokenLayout&, AttentionPlan* plan,
                                          RandomStream& r) {
    return on_server(plan, r, [&](ServerPlan* server) {
      server->groups.back().after_round = static_cast<int>(plan->out.size()) + 1;
    });
  };
  all["groups that wait less and less"] = [](const TokenLayout&, AttentionPlan* plan,
                                             RandomStream&) {
    for (ServerPlan& server : plan->servers) {
      if (server.groups.size() < 2) continue;
      server.groups.front().after_round = server.groups.back().after_round + 1;
      return true;
    }
    return false;
  };
  return all;
}

Corruptions corrupt_transfers() {
  Corruptions all;
  all["an out transfer missing"] = [](const TokenLayout&, AttentionPlan* plan, RandomStream& r) {
    return on_transfer(&plan->out, r, drop_transfer);
  };
  all["a back transfer missing"] = [](const TokenLayout& layout, AttentionPlan* plan,
                                      RandomStream& r) {
    // Without a detour a plan may be as good.
    return on_transfer(&plan->back, r, drop_transfer) &&
           !find_violation_by_token(layout, *plan).empty();
  };
  const auto twice = [](Round* round, const Transfer* transfer) {
    round->transfers.insert(round->transfers.begin() + (transfer - round->transfers.data()),
                            Transfer(*transfer));
  };
  all["an out transfer twice"] = [=](const TokenLayout&, AttentionPlan* plan, RandomStream& r) {
    return on_transfer(&plan->out, r, twice);
  };
  all["a back transfer twice"] = [=](const TokenLayout&, AttentionPlan* plan, RandomStream& r) {
    return on_transfer(&plan->back, r, twice);
  };
  all["an out transfer again in a later round"] = [](const TokenLayout&, AttentionPlan* plan,
                                                     RandomStream& r) {
    return on_transfer(&plan->out, r, [&](Round*, const Transfer* transfer) {
      plan->out.push_back({{*transfer}});
    });
  };
  all["a transfer to itself"] = [](const TokenLayout& layout, AttentionPlan* plan,
                                   RandomStream& r) {
    return on_transfer(&plan->back, r, [&](Round*, Transfer* transfer) {
      transfer->destination = transfer->source;
      finish_plan(layout, plan);
    });
  };
  all["a rank that is not there"] = [](const TokenLayout& layout, AttentionPlan* plan,
                                       RandomStream& r) {
    return on_transfer(&plan->out, r, [&](Round*, Transfer* transfer) {
      transfer->destination = layout.num_ranks();
      finish_plan(layout, plan);
    });
  };
  all["a transfer of no rows"] = [](const TokenLayout&, AttentionPlan* plan, RandomStream& r) {
    return on_transfer(&plan->out, r, [](Round*, Transfer* transfer) {
      transfer->line.end = transfer->line.begin;
    });
  };
  return all;
}

Corruptions corrupt_rounds() {
  Corruptions all;
  all["a round not sorted"] = [](const TokenLayout&, AttentionPlan* plan, RandomStream&) {
    for (std::vector<Round>* leg : {&plan->out, &plan->back}) {
      for (Round& round : *leg) {
        if (round.transfers.size() < 2) continue;
        std::swap(round.transfers.front(), round.transfers.back());
        return true;
      }
    }
    return false;
  };
  all["rounds of the out leg reversed"] = [](const TokenLayout& layout, AttentionPlan* plan,
                                             RandomStream&) {
    std::reverse(plan->out.begin(), plan->out.end());
    return !find_violation_by_token(layout, *plan).empty();
  };
  all["rounds of the back leg reversed"] = [](const TokenLayout& layout, AttentionPlan* plan,
                                              RandomStream&) {
    std::reverse(plan->back.begin(), plan->back.end());
    return !find_violation_by_token(layout, *plan).empty();
  };
  all["a partial input"] = [](const TokenLayout&, AttentionPlan* plan, RandomStream& r) {
    return on_transfer(&plan->out, r, [](Round*, Transfer* transfer) { transfer->partial = true; });
  };
  all["no transfer partial"] = [](const TokenLayout& layout, AttentionPlan* plan, RandomStream&) {
    for (Round& round : plan->back) {
      for (Transfer& transfer : round.transfers) transfer.partial = false;
    }
    return !find_violation_by_token(layout, *plan).empty();
  };
  all["a key result in forward"] = [](const TokenLayout& layout, AttentionPlan* plan,
                                      RandomStream& r) {
    if (plan->direction == Direction::kBackward) return false;
    return on_transfer(&plan->back, r, [&](Round*, Transfer* transfer) {
      transfer->kind = RowKind::kKeyValue;
      finish_plan(layout, plan);
    });
  };
  return all;
}

Corruptions corrupt_frame() {
  Corruptions all;
  all["resident rows at home"] = [](const TokenLayout& layout, AttentionPlan* plan, RandomStream&) {
    for (int rank = 0; rank < layout.num_ranks(); ++rank) {
      const Range piece = layout.piece(0, rank);
      if (plan->chunk == 0 || piece.empty()) continue;
      plan->servers[static_cast<size_t>(rank)].resident_key_rows = {piece};
      return true;
    }
    return false;
  };
  all["resident rows of a later chunk"] = [](const TokenLayout& layout, AttentionPlan* plan,
                                             RandomStream&) {
    const Range rows{layout.chunk(plan->chunk).end, layout.num_tokens()};
    if (rows.empty()) return false;
    plan->servers[0].resident_key_rows = {rows};
    return true;
  };
  all["a server missing"] = [](const TokenLayout&, AttentionPlan* plan, RandomStream&) {
    plan->servers.pop_back();
    return true;
  };
  all["another chunk"] = [](const TokenLayout& layout, AttentionPlan* plan, RandomStream&) {
    plan->chunk = layout.num_chunks();
    return true;
  };
  return all;
}

TEST(PlanVerifier, CatchesEveryKindOfCorruption) {
  Corruptions all;
  for (const auto& some : {corrupt_tasks(), corrupt_buffers_and_groups(), corrupt_transfers(),
                           corrupt_rounds(), corrupt_frame()}) {
    all.insert(some.begin(), some.end());
  }
  for (const auto& [name, corrupt] : all) {
    int applied = 0;
    for (uint64_t seed = 0; seed < 400; ++seed) {
      auto [layout, plan] = random_case(seed);
      RandomStream random(seed, name);
      if (!corrupt(layout, &plan, random)) continue;
      applied += 1;
      ASSERT_NE(complaint(layout, plan), "") << name << ", seed " << seed;
    }
    EXPECT_GE(applied, 20) << name;
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
