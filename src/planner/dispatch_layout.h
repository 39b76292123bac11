// Where everything lies that a plan moves: offsets in buffers, messages, exact sizes.
//
// Why: a runtime that launches and copies needs numbers of rows, not line ranges. They follow from
// the plan alone, so they are made with it, off the critical path, once for all layers.
//
//   DispatchLayout dispatch = dispatch_layout(layout, plan);
//   dispatch.servers[2].tasks[0].query_row;     // first row of the task's queries in the buffer
//   dispatch.out[0][5].query_rows;              // rows in the sixth message of the first round
//
// Values; pure function; any thread.
#pragma once

#include <vector>

#include "planner/attention_plan.h"

namespace longspan {

// First rows of a task in its server's buffers.
struct TaskRows {
  int64_t query_row = 0;
  int64_t key_row = 0;
  bool operator==(const TaskRows&) const = default;
};

struct ServerRows {
  int64_t query_rows = 0;  // of its buffers
  int64_t key_rows = 0;
  std::vector<TaskRows> tasks;  // as in ServerPlan::tasks
  bool operator==(const ServerRows&) const = default;
};

// What one rank sends another in a round: transfers [transfer_begin, transfer_end) of it.
struct DispatchMessage {
  int source = 0;
  int destination = 0;
  size_t transfer_begin = 0;
  size_t transfer_end = 0;
  int64_t query_rows = 0;
  int64_t key_rows = 0;
  bool operator==(const DispatchMessage&) const = default;
};

struct DispatchLayout {
  std::vector<ServerRows> servers;
  std::vector<std::vector<DispatchMessage>> out;  // round by round
  std::vector<std::vector<DispatchMessage>> back;
  bool operator==(const DispatchLayout&) const = default;
};

DispatchLayout dispatch_layout(const TokenLayout& layout, const AttentionPlan& plan);

}  // namespace longspan
