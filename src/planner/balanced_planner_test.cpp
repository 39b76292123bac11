#include "planner/balanced_planner.h"

#include <gtest/gtest.h>

#include <chrono>
#include <functional>

#include "base/error.h"
#include "cost/charged_pairs.h"
#include "planner/home_plan.h"
#include "planner/plan_chunks.h"
#include "planner/plan_summary.h"
#include "planner/plan_verifier.h"
#include "planner/planner_test_layouts.h"

namespace longspan {
namespace {

// The most that one row of tiles of a task on this server costs.
double heaviest_row(const ServerPlan& server) {
  int64_t heaviest = 0;
  for (const AttentionTask& task : server.tasks) {
    heaviest = std::max(
        heaviest, charged_pairs({task.queries.end - 1, task.queries.end}, {0, task.queries.end}));
  }
  return static_cast<double>(heaviest);
}

double total_speed(const std::vector<double>& speeds) {
  double total = 0;
  for (const double speed : speeds) total += speed;
  return total;
}

double total_load(const PlanSummary& summary) {
  double total = 0;
  for (const ServerSummary& server : summary.servers) {
    total += static_cast<double>(server.charged_pairs);
  }
  return total;
}

double highest_load(const PlanSummary& summary, const std::vector<double>& speeds) {
  double highest = 0;
  for (size_t rank = 0; rank < speeds.size(); ++rank) {
    if (speeds[rank] == 0) continue;
    const auto load = static_cast<double>(summary.servers[rank].charged_pairs);
    highest = std::max(highest, load / speeds[rank]);
  }
  return highest;
}

// No server is above (1 + epsilon) times the level, unless it is stuck on one row of tiles: moved
// to a server at the level, its row would take that one above. Needs borders that are snapped to
// blocks: cuts then keep the number of tiles.
void expect_balanced(const AttentionPlan& plan, const PlanSummary& summary, const PlanSummary& home,
                     const std::vector<double>& speeds, double epsilon) {
  EXPECT_EQ(total_load(summary), total_load(home));
  const double level = total_load(home) / total_speed(speeds);
  double slowest = 0;
  for (const double speed : speeds) {
    if (speed > 0) slowest = slowest == 0 ? speed : std::min(slowest, speed);
  }
  for (size_t rank = 0; rank < speeds.size(); ++rank) {
    const auto load = static_cast<double>(summary.servers[rank].charged_pairs);
    if (speeds[rank] == 0) continue;
    const double row = heaviest_row(plan.servers[rank]);
    const double bound = std::max((1 + epsilon) * level, level + row / slowest);
    EXPECT_LE(load / speeds[rank], bound * (1 + 1e-12)) << "rank " << rank;
  }
}

bool only_servers_work(const PlanSummary& summary, const std::vector<double>& speeds) {
  for (size_t rank = 0; rank < speeds.size(); ++rank) {
    if (speeds[rank] == 0 && summary.servers[rank].tasks > 0) return false;
  }
  return true;
}

std::vector<double> random_speeds(RandomStream& random, const TokenLayout& layout) {
  std::vector<double> speeds(static_cast<size_t>(layout.num_ranks()), 1.0);
  const uint64_t mode = random.below(4);
  if (mode == 0) return {};
  for (size_t rank = 0; rank < speeds.size(); ++rank) {
    const auto pieces = layout.pieces_before(layout.num_chunks(), static_cast<int>(rank));
    if (mode == 1) speeds[rank] = total_size(pieces) == 0 ? 1 : 0;  // dedicated
    if (mode == 2) speeds[rank] = random.below(3) == 0 ? 0 : 1;
    if (mode == 3) speeds[rank] = 0.5 + random.uniform();
  }
  if (total_speed(speeds) == 0) speeds.back() = 1;
  return speeds;
}

TEST(BalancedPlanner, IsValidBalancedAndRepeatable) {
  for (uint64_t seed = 0; seed < 500; ++seed) {
    SCOPED_TRACE(text("seed ", seed));
    RandomStream random(seed, "balanced planner");
    const bool snapped = random.below(2) == 0;
    const TokenLayout layout =
        random_layout(random, {.max_documents = 14,
                               .max_document_tokens = random.below(2) == 0 ? 1500 : 30000,
                               .allow_any_border = !snapped});
    PlannerOptions options;
    options.epsilon = random.below(3) == 0 ? 0 : random.uniform() / 5;
    options.server_speed = random_speeds(random, layout);
    const auto speeds = server_speeds(options, layout.num_ranks());
    for (int chunk = 0; chunk < layout.num_chunks(); ++chunk) {
      for (const Direction direction : {Direction::kForward, Direction::kBackward}) {
        const AttentionPlan plan = balanced_plan(layout, chunk, direction, options);
        ASSERT_NO_THROW(verify_plan(layout, plan, {.require_block_alignment = true}));
        const PlanSummary summary = summarize(layout, plan, speeds);
        const PlanSummary home = summarize(layout, home_plan(layout, chunk, direction));
        if (snapped) expect_balanced(plan, summary, home, speeds, options.epsilon);
        EXPECT_TRUE(only_servers_work(summary, speeds));
        EXPECT_EQ(plan, balanced_plan(layout, chunk, direction, options));
      }
    }
  }
}

TEST(BalancedPlanner, IsNeverBehindTheHomePlan) {
  for (uint64_t seed = 0; seed < 500; ++seed) {
    RandomStream random(seed, "against home");
    const TokenLayout layout = random_layout(random);
    std::vector<double> speeds(static_cast<size_t>(layout.num_ranks()), 1.0);
    if (random.below(2) == 0) {
      for (double& speed : speeds) speed = 0.5 + random.uniform();
    }
    for (int chunk = 0; chunk < layout.num_chunks(); ++chunk) {
      const auto plan =
          balanced_plan(layout, chunk, Direction::kForward, {.epsilon = 0, .server_speed = speeds});
      const auto home = home_plan(layout, chunk, Direction::kForward);
      const PlanSummary summary = summarize(layout, plan, speeds);
      const PlanSummary home_summary = summarize(layout, home, speeds);
      EXPECT_LE(highest_load(summary, speeds), highest_load(home_summary, speeds))
          << "seed " << seed;
      EXPECT_DOUBLE_EQ(home_summary.imbalance, summary.home_imbalance) << "seed " << seed;
    }
  }
}

TEST(BalancedPlanner, ReturnsTheHomePlanWhereThatIsBalanced) {
  const auto layout = TokenLayout::make({1024, 1024, 1024, 1024}, {.shares = {1, 1, 1, 1}});
  EXPECT_EQ(balanced_plan(layout, 0, Direction::kForward),
            home_plan(layout, 0, Direction::kForward));
}

double best_of_five_ms(const std::function<void()>& work) {
  double best = 0;
  for (int run = 0; run < 5; ++run) {
    const auto start = std::chrono::steady_clock::now();
    work();
    const std::chrono::duration<double, std::milli> ms = std::chrono::steady_clock::now() - start;
    best = run == 0 ? ms.count() : std::min(best, ms.count());
  }
  return best;
}

// Lengths like those of real text: most short, a few very long.
std::vector<int64_t> skewed_lengths(size_t documents, int64_t short_tokens, int64_t long_tokens) {
  RandomStream random(7, "skewed lengths");
  std::vector<int64_t> lengths(documents);
  for (int64_t& length : lengths) {
    length = random.below(50) == 0 ? random.between(long_tokens / 2, long_tokens)
                                   : random.between(1, short_tokens);
  }
  lengths[documents / 3] = long_tokens;
  return lengths;
}

void print(const char* name, const TokenLayout& layout, const AttentionPlan& plan,
           const std::vector<double>& speeds, double plan_ms, double verify_ms) {
  const PlanSummary summary = summarize(layout, plan, speeds);
  int64_t tasks = 0;
  int64_t query_rows = 0;
  int64_t key_rows = 0;
  for (const ServerSummary& server : summary.servers) {
    tasks += server.tasks;
    query_rows += server.out_received.query;
    key_rows += server.out_received.key;
  }
  std::cout << name << ": " << layout.num_documents() << " documents, " << layout.num_tokens()
            << " tokens, imbalance " << summary.home_imbalance << " -> " << summary.imbalance
            << ", " << tasks << " tasks, moved rows " << query_rows << " query, " << key_rows
            << " key; plan " << plan_ms << " ms, verify " << verify_ms << " ms\n";
}

TEST(BalancedPlanner, PlansInMilliseconds) {
  struct Setup {
    const char* name;
    std::vector<int64_t> lengths;
    std::vector<double> shares;
    std::vector<double> speeds;
  };
  const std::vector<double> eight(8, 1.0);
  const std::vector<double> compute = {1, 1, 1, 1, 1, 1, 0, 0};
  const std::vector<double> serve = {0, 0, 0, 0, 0, 0, 1, 1};
  for (const Setup& setup :
       {Setup{"in place", skewed_lengths(200, 6000, 120000), eight, eight},
        Setup{"dedicated", skewed_lengths(200, 6000, 120000), compute, serve},
        Setup{"short", skewed_lengths(4000, 300, 3000), eight, eight},
        Setup{"short dedicated", skewed_lengths(4000, 300, 3000), compute, serve}}) {
    const auto layout = TokenLayout::make(setup.lengths, {.shares = setup.shares});
    const PlannerOptions options{.server_speed = setup.speeds};
    AttentionPlan plan;
    const double plan_ms =
        best_of_five_ms([&] { plan = balanced_plan(layout, 0, Direction::kForward, options); });
    const double verify_ms = best_of_five_ms([&] { verify_plan(layout, plan); });
    print(setup.name, layout, plan, setup.speeds, plan_ms, verify_ms);
    const PlanSummary summary = summarize(layout, plan, setup.speeds);
    EXPECT_LE(summary.imbalance, 1.05);
    int64_t tasks = 0;
    for (const ServerSummary& server : summary.servers) tasks += server.tasks;
    EXPECT_LE(tasks, layout.num_documents() + 16 * layout.num_ranks());
#ifdef NDEBUG
    if (layout.num_documents() <= 200) {
      EXPECT_LT(plan_ms, 10);
    }
#endif
  }
}

TEST(PlanChunks, PlansAndVerifiesEveryChunk) {
  const auto layout = TokenLayout::make({5000, 1, 130}, {.chunks = 3, .shares = {1, 1, 0}});
  const auto plans = plan_chunks(layout, {.planner = {.server_speed = {0, 0, 1}}, .verify = true});
  ASSERT_EQ(plans.size(), 3U);
  for (size_t chunk = 0; chunk < plans.size(); ++chunk) {
    EXPECT_EQ(plans[chunk].forward.chunk, static_cast<int>(chunk));
    EXPECT_EQ(plans[chunk].forward.direction, Direction::kForward);
    EXPECT_EQ(plans[chunk].backward.chunk, static_cast<int>(chunk));
    EXPECT_EQ(plans[chunk].backward.direction, Direction::kBackward);
  }
  EXPECT_THROW(plan_chunks(layout, {.planner = {.server_speed = {0, 0, 0}}}), InternalError);
}

}  // namespace
}  // namespace longspan
