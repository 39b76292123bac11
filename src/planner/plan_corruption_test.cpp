#include <gtest/gtest.h>

#include <functional>
#include <map>
#include <string>

#include "planner/plan_oracle.h"
#include "planner/plan_verifier_cases.h"

namespace longspan {
namespace {

struct Corruption {
  std::string phrase;  // what the message says; empty where several checks may be the first
  std::function<bool(const TokenLayout&, AttentionPlan*, RandomStream&)> apply;
};

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
  all["drop the last task"] = {
      "", [](const TokenLayout& layout, AttentionPlan* plan, RandomStream& r) {
        return on_server(plan, r, [&](ServerPlan* server) {
          server->tasks.pop_back();
          if (--server->groups.back().task_end == server->groups.back().task_begin) {
            server->groups.pop_back();
          }
          finish_plan(layout, plan);
        });
      }};
  all["a task twice"] = {"covered twice",
                         [](const TokenLayout&, AttentionPlan* plan, RandomStream& r) {
                           return on_server(plan, r, [](ServerPlan* server) {
                             server->tasks.push_back(AttentionTask(server->tasks.back()));
                             server->groups.back().task_end += 1;
                           });
                         }};
  all["a task of a document that is not there"] = {
      ": there are ", [](const TokenLayout& layout, AttentionPlan* plan, RandomStream& r) {
        return on_server(plan, r, [&](ServerPlan* server) {
          server->tasks[0].document = layout.num_documents();
        });
      }};
  all["a query of another chunk"] = {
      "the chunk's queries of this document",
      [](const TokenLayout& layout, AttentionPlan* plan, RandomStream& r) {
        bool done = false;
        on_server(plan, r, [&](ServerPlan* server) {
          AttentionTask& task = server->tasks[0];
          const Range chunk = layout.chunk(plan->chunk);
          const Range document = layout.document(task.document);
          task.queries.end = document.size();
          done = document.end > chunk.end;
        });
        return done;
      }};
  all["keys of a later chunk"] = {
      "the keys that exist by this chunk",
      [](const TokenLayout& layout, AttentionPlan* plan, RandomStream& r) {
        bool done = false;
        on_server(plan, r, [&](ServerPlan* server) {
          AttentionTask& task = server->tasks[0];
          task.keys.end = layout.document_tokens(task.document);
          done = layout.document(task.document).end > layout.chunk(plan->chunk).end;
        });
        return done;
      }};
  all["a task without visible pairs"] = {
      "no pair with key <= query",
      [](const TokenLayout& layout, AttentionPlan* plan, RandomStream& r) {
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
      }};
  return all;
}

Corruptions corrupt_buffers_and_groups() {
  Corruptions all;
  all["query rows of the buffer"] = {
      "its query rows are", [](const TokenLayout&, AttentionPlan* plan, RandomStream& r) {
        return on_server(plan, r, [](ServerPlan* server) { server->query_rows.back().end += 1; });
      }};
  all["key rows of the buffer"] = {
      "its key rows are", [](const TokenLayout&, AttentionPlan* plan, RandomStream& r) {
        return on_server(plan, r, [](ServerPlan* server) { server->key_rows.pop_back(); });
      }};
  all["buffer rows split in two"] = {"its key rows are",
                                     [](const TokenLayout&, AttentionPlan* plan, RandomStream& r) {
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
                                     }};
  all["a group without its last task"] = {
      "launch group", [](const TokenLayout&, AttentionPlan* plan, RandomStream& r) {
        return on_server(plan, r, [](ServerPlan* server) { server->groups.back().task_end -= 1; });
      }};
  all["an empty group"] = {"follows the tasks up to",
                           [](const TokenLayout&, AttentionPlan* plan, RandomStream& r) {
                             return on_server(plan, r, [](ServerPlan* server) {
                               LaunchGroup last = server->groups.back();
                               last.task_begin = last.task_end;
                               server->groups.push_back(last);
                             });
                           }};
  all["a group that waits too long"] = {
      "waits for", [](const TokenLayout&, AttentionPlan* plan, RandomStream& r) {
        return on_server(plan, r, [&](ServerPlan* server) {
          server->groups.back().after_round = static_cast<int>(plan->out.size()) + 1;
        });
      }};
  all["groups that wait less and less"] = {
      "waits for", [](const TokenLayout&, AttentionPlan* plan, RandomStream&) {
        for (ServerPlan& server : plan->servers) {
          if (server.groups.size() < 2) continue;
          server.groups.front().after_round = server.groups.back().after_round + 1;
          return true;
        }
        return false;
      }};
  return all;
}

Corruptions corrupt_transfers() {
  Corruptions all;
  all["an out transfer missing"] = {"",
                                    [](const TokenLayout&, AttentionPlan* plan, RandomStream& r) {
                                      return on_transfer(&plan->out, r, drop_transfer);
                                    }};
  all["a back transfer missing"] = {
      "", [](const TokenLayout& layout, AttentionPlan* plan, RandomStream& r) {
        // Without a detour a plan may be as good.
        return on_transfer(&plan->back, r, drop_transfer) &&
               !find_violation_by_token(layout, *plan).empty();
      }};
  const auto twice = [](Round* round, const Transfer* transfer) {
    round->transfers.insert(round->transfers.begin() + (transfer - round->transfers.data()),
                            Transfer(*transfer));
  };
  all["an out transfer twice"] = {"overlaps",
                                  [=](const TokenLayout&, AttentionPlan* plan, RandomStream& r) {
                                    return on_transfer(&plan->out, r, twice);
                                  }};
  all["a back transfer twice"] = {"overlaps",
                                  [=](const TokenLayout&, AttentionPlan* plan, RandomStream& r) {
                                    return on_transfer(&plan->back, r, twice);
                                  }};
  all["an out transfer again in a later round"] = {
      "holds some of these rows already",
      [](const TokenLayout&, AttentionPlan* plan, RandomStream& r) {
        return on_transfer(&plan->out, r, [&](Round*, const Transfer* transfer) {
          plan->out.push_back({{*transfer}});
        });
      }};
  all["a transfer to itself"] = {
      "a rank sends to itself",
      [](const TokenLayout& layout, AttentionPlan* plan, RandomStream& r) {
        return on_transfer(&plan->back, r, [&](Round*, Transfer* transfer) {
          transfer->destination = transfer->source;
          finish_plan(layout, plan);
        });
      }};
  all["a rank that is not there"] = {
      "there are", [](const TokenLayout& layout, AttentionPlan* plan, RandomStream& r) {
        return on_transfer(&plan->out, r, [&](Round*, Transfer* transfer) {
          transfer->destination = layout.num_ranks();
          finish_plan(layout, plan);
        });
      }};
  all["a transfer of no rows"] = {
      "rows of this plan are", [](const TokenLayout&, AttentionPlan* plan, RandomStream& r) {
        return on_transfer(&plan->out, r, [](Round*, Transfer* transfer) {
          transfer->line.end = transfer->line.begin;
        });
      }};
  return all;
}

Corruptions corrupt_rounds() {
  Corruptions all;
  all["a round not sorted"] = {"not sorted",
                               [](const TokenLayout&, AttentionPlan* plan, RandomStream&) {
                                 for (std::vector<Round>* leg : {&plan->out, &plan->back}) {
                                   for (Round& round : *leg) {
                                     if (round.transfers.size() < 2) continue;
                                     std::swap(round.transfers.front(), round.transfers.back());
                                     return true;
                                   }
                                 }
                                 return false;
                               }};
  all["rounds of the out leg reversed"] = {
      "", [](const TokenLayout& layout, AttentionPlan* plan, RandomStream&) {
        std::reverse(plan->out.begin(), plan->out.end());
        return !find_violation_by_token(layout, *plan).empty();
      }};
  all["rounds of the back leg reversed"] = {
      "", [](const TokenLayout& layout, AttentionPlan* plan, RandomStream&) {
        std::reverse(plan->back.begin(), plan->back.end());
        return !find_violation_by_token(layout, *plan).empty();
      }};
  all["a partial input"] = {
      "inputs are never partial", [](const TokenLayout&, AttentionPlan* plan, RandomStream& r) {
        return on_transfer(&plan->out, r,
                           [](Round*, Transfer* transfer) { transfer->partial = true; });
      }};
  all["no transfer partial"] = {"not marked partial",
                                [](const TokenLayout& layout, AttentionPlan* plan, RandomStream&) {
                                  for (Round& round : plan->back) {
                                    for (Transfer& transfer : round.transfers)
                                      transfer.partial = false;
                                  }
                                  return !find_violation_by_token(layout, *plan).empty();
                                }};
  all["a transfer of two home pieces"] = {
      "leaves its home piece", [](const TokenLayout& layout, AttentionPlan* plan, RandomStream& r) {
        bool done = false;
        on_transfer(&plan->out, r, [&](Round*, Transfer* transfer) {
          if (transfer->kind == RowKind::kQuery) return;
          const Home home = layout.home(transfer->line.begin);
          transfer->line.end = layout.piece(home.chunk, home.rank).end + 1;
          done = transfer->line.end <= layout.chunk(plan->chunk).end;
        });
        return done;
      }};
  all["a key result in forward"] = {
      "forward has no results for keys",
      [](const TokenLayout& layout, AttentionPlan* plan, RandomStream& r) {
        if (plan->direction == Direction::kBackward) return false;
        return on_transfer(&plan->back, r, [&](Round*, Transfer* transfer) {
          transfer->kind = RowKind::kKeyValue;
          finish_plan(layout, plan);
        });
      }};
  return all;
}

Corruptions corrupt_frame() {
  Corruptions all;
  all["resident rows at home"] = {
      "resident key rows", [](const TokenLayout& layout, AttentionPlan* plan, RandomStream&) {
        for (int rank = 0; rank < layout.num_ranks(); ++rank) {
          const Range piece = layout.piece(0, rank);
          if (plan->chunk == 0 || piece.empty()) continue;
          plan->servers[static_cast<size_t>(rank)].resident_key_rows = {piece};
          return true;
        }
        return false;
      }};
  all["resident rows not normalized"] = {
      "not normalized", [](const TokenLayout&, AttentionPlan* plan, RandomStream&) {
        plan->servers[0].resident_key_rows.push_back({0, 0});
        return true;
      }};
  all["resident rows of a later chunk"] = {
      "resident key rows", [](const TokenLayout& layout, AttentionPlan* plan, RandomStream&) {
        const Range rows{layout.chunk(plan->chunk).end, layout.num_tokens()};
        if (rows.empty()) return false;
        plan->servers[0].resident_key_rows = {rows};
        return true;
      }};
  all["a server missing"] = {"servers for",
                             [](const TokenLayout&, AttentionPlan* plan, RandomStream&) {
                               plan->servers.pop_back();
                               return true;
                             }};
  all["another chunk"] = {"ward: chunk ",
                          [](const TokenLayout& layout, AttentionPlan* plan, RandomStream&) {
                            plan->chunk = layout.num_chunks();
                            return true;
                          }};
  return all;
}

TEST(PlanCorruption, CatchesEveryKindOfCorruption) {
  Corruptions all;
  for (const auto& some : {corrupt_tasks(), corrupt_buffers_and_groups(), corrupt_transfers(),
                           corrupt_rounds(), corrupt_frame()}) {
    all.insert(some.begin(), some.end());
  }
  for (const auto& [name, corruption] : all) {
    int applied = 0;
    for (uint64_t seed = 0; seed < 400; ++seed) {
      auto [layout, plan] = random_case(seed);
      RandomStream random(seed, name);
      if (!corruption.apply(layout, &plan, random)) continue;
      applied += 1;
      const std::string message = complaint(layout, plan);
      ASSERT_NE(message, "") << name << ", seed " << seed;
      ASSERT_NE(message.find(corruption.phrase), std::string::npos)
          << name << ", seed " << seed << ": " << message;
    }
    EXPECT_GE(applied, 20) << name;
  }
}

}  // namespace
}  // namespace longspan
