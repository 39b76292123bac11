#include "planner/dispatch_layout.h"

#include <gtest/gtest.h>

#include "planner/planner_test_layouts.h"
#include "planner/random_plan.h"

namespace longspan {
namespace {

// The line position of a buffer row, counted one by one.
int64_t line_of_row(const std::vector<Range>& rows, int64_t row) {
  for (const Range& range : rows) {
    if (row < range.size()) return range.begin + row;
    row -= range.size();
  }
  return -1;
}

TEST(DispatchLayout, SaysWhereRowsLie) {
  for (uint64_t seed = 0; seed < 200; ++seed) {
    RandomStream random(seed, "dispatch layout");
    const TokenLayout layout = random_layout(random);
    const AttentionPlan plan = random_plan(layout, 0, Direction::kBackward, seed);
    const DispatchLayout dispatch = dispatch_layout(layout, plan);
    for (size_t rank = 0; rank < plan.servers.size(); ++rank) {
      const ServerPlan& server = plan.servers[rank];
      EXPECT_EQ(dispatch.servers[rank].key_rows, total_size(server.key_rows)) << "seed " << seed;
      for (size_t idx = 0; idx < server.tasks.size(); ++idx) {
        const AttentionTask& task = server.tasks[idx];
        const TaskRows& rows = dispatch.servers[rank].tasks[idx];
        EXPECT_EQ(line_of_row(server.query_rows, rows.query_row),
                  layout.to_line(task.document, task.queries).begin)
            << "seed " << seed;
        EXPECT_EQ(line_of_row(server.key_rows, rows.key_row + task.keys.size() - 1) + 1,
                  layout.to_line(task.document, task.keys).end)
            << "seed " << seed;
      }
    }
    for (size_t round = 0; round < plan.out.size(); ++round) {
      size_t transfers = 0;
      for (const DispatchMessage& message : dispatch.out[round]) {
        const auto expected =
            transfers_between(plan.out[round], message.source, message.destination);
        EXPECT_EQ(message.transfer_begin, transfers) << "seed " << seed;
        EXPECT_EQ(message.transfer_end - message.transfer_begin, expected.size());
        int64_t rows = 0;
        for (const Transfer& transfer : expected) rows += transfer.line.size();
        EXPECT_EQ(message.query_rows + message.key_rows, rows) << "seed " << seed;
        transfers = message.transfer_end;
      }
      EXPECT_EQ(transfers, plan.out[round].transfers.size()) << "seed " << seed;
    }
  }
}

}  // namespace
}  // namespace longspan
