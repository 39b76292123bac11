// From what a user asks for to a request: names looked up, batches made, everything checked.
//
//   PlanRequest request = make_request({.stream = "pretrain:512K", .servers = "32",
//                                       .tokens_per_rank = "128K"});
//   PlanRequest request = make_run_request(run, packed_batches(packer, 4), options);
//
// UserError for whatever is wrong or missing, with the nearest name where one was mistyped.
// Reads files; any thread.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "plan_report/plan_study.h"

namespace longspan {

struct PlanOptions {
  std::string lengths;  // a file; or
  std::string stream;   // NAME:LEN
  int64_t servers = 0;
  std::string tokens_per_rank;
  std::string model;  // preset or folder; empty: llama-8b
  int64_t gpus_per_server = 1;
  int64_t batches = 0;  // 0: one of a file, eight of a stream, four of a run
  std::string cluster;  // empty: h200-50
  std::vector<std::string> baselines;
  bool all_baselines = false;
  bool no_overlap = false;
  uint64_t seed = 1;  // of a stream
};

PlanRequest make_request(const PlanOptions& options);

// `options.batches`, or `otherwise` if the user gave none. UserError beyond 100000: figures of each
// stay in memory.
int64_t num_batches(const PlanOptions& options, int64_t otherwise);

// How a run plans its micro-batches (train/run_setup.h).
struct RunPlanning {
  ModelSpec model;
  int64_t value_bytes = 2;
  bool on_gpu = true;
  std::string profile;
  int chunks = 1;
  std::vector<double> token_shares;
  PlanningCosts costs;
  AttentionPlannerOptions planner;
};

// UserError if an option says what a run's file says.
void check_run_options(const PlanOptions& options);

// `batches` are the run's first micro-batches (packed_batches).
PlanRequest make_run_request(const RunPlanning& run, BatchSource batches,
                             const PlanOptions& options);

}  // namespace longspan
