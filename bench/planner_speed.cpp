// How long planning takes: plan and dispatch layout of a chunk, both directions, on one core.
//
//   longspan_planner_speed [--servers 64,512] [--batches 30] [--gpus-per-server 1] [--json FILE]
//
// Each batch is planned once, after one that warms up; the time of a batch is that of its forward
// and its backward plan with their dispatch layouts. Median and 95th percentile over batches, by
// the clock and in CPU time (what a busy machine leaves comparable), and the mean time of each pass
// of the planner, by the clock.
#include <CLI/CLI.hpp>

#include <algorithm>
#include <chrono>
#include <ctime>
#include <iostream>
#include <nlohmann/json.hpp>
#include <utility>

#include "base/error.h"
#include "formats/json.h"
#include "observe/build_info.h"
#include "observe/number_format.h"
#include "plan_report/plan_request.h"
#include "plan_report/text_table.h"
#include "planner/dispatch_layout.h"

namespace longspan {
namespace {

using Clock = std::chrono::steady_clock;

struct Arguments {
  std::vector<int64_t> servers = {64, 512};
  std::vector<std::string> streams = {"prolong:512K", "pretrain:512K", "hist:128K"};
  int64_t batches = 30;
  int64_t gpus_per_server = 1;
  std::string json;
};

// Milliseconds of one batch.
struct Sample {
  double total_ms = 0;
  double cpu_ms = 0;
  std::vector<std::pair<std::string, double>> passes;  // in the planner's order, then dispatch

  void add(std::string_view name, double ms) {
    for (auto& [known, sum] : passes) {
      if (known != name) continue;
      sum += ms;
      return;
    }
    passes.emplace_back(name, ms);
  }
};

double ms_since(Clock::time_point start) {
  return std::chrono::duration<double, std::milli>(Clock::now() - start).count();
}

// CPU time of this thread.
double cpu_ms_now() {
  timespec now{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
  return static_cast<double>(now.tv_sec) * 1e3 + static_cast<double>(now.tv_nsec) * 1e-6;
}

Sample time_batch(const PlanRequest& request, const LengthBatch& batch,
                  const PlanningCosts& costs) {
  const TokenLayout layout =
      TokenLayout::make(batch.lengths, {.chunks = 1, .shares = request.token_shares});
  Sample sample;
  for (const Direction direction : {Direction::kForward, Direction::kBackward}) {
    const auto start = Clock::now();
    const double cpu_start_ms = cpu_ms_now();
    const PlannedAttention planned = plan_attention(layout, 0, direction, costs);
    const auto dispatch_start = Clock::now();
    const DispatchLayout dispatch = dispatch_layout(layout, planned.plan);
    const double dispatch_ms = ms_since(dispatch_start);
    sample.total_ms += ms_since(start);
    sample.cpu_ms += cpu_ms_now() - cpu_start_ms;
    if (dispatch.servers.empty()) throw InternalError("a plan without servers");
    for (const PassTime& pass : planned.passes) sample.add(pass.name, pass.seconds * 1e3);
    sample.add("dispatch", dispatch_ms);
  }
  return sample;
}

double quantile(std::vector<double> values, double share) {
  std::sort(values.begin(), values.end());
  const auto last = static_cast<double>(values.size() - 1);
  return values[static_cast<size_t>(share * last + 0.5)];
}

Json measure(const Arguments& arguments, int64_t servers, const std::string& stream,
             TextTable& table) {
  const PlanRequest request = make_request({.stream = stream,
                                            .servers = servers,
                                            .tokens_per_rank = "64K",
                                            .gpus_per_server = arguments.gpus_per_server,
                                            .batches = arguments.batches + 1});
  const PlanningCosts costs = planning_costs(request.target, request.speeds, 65536);
  std::vector<double> totals;
  std::vector<double> cpu_totals;
  Sample sum;
  double documents = 0;
  for (int64_t idx = 0; idx < request.batches.count; ++idx) {
    const LengthBatch batch = request.batches.next();
    const Sample sample = time_batch(request, batch, costs);
    if (idx == 0) continue;
    totals.push_back(sample.total_ms);
    cpu_totals.push_back(sample.cpu_ms);
    documents += static_cast<double>(batch.lengths.size());
    for (const auto& [name, ms] : sample.passes) sum.add(name, ms);
  }
  const auto count = static_cast<double>(totals.size());
  Json json = {{"servers", servers},
               {"stream", stream},
               {"documents", documents / count},
               {"median_ms", quantile(totals, 0.5)},
               {"p95_ms", quantile(totals, 0.95)},
               {"cpu_median_ms", quantile(cpu_totals, 0.5)},
               {"cpu_p95_ms", quantile(cpu_totals, 0.95)}};
  std::string passes;
  for (const auto& [name, ms] : sum.passes) {
    json["passes_ms"][name] = ms / count;
    passes += text(passes.empty() ? "" : ", ", name, " ", three_digits(ms / count));
  }
  table.add({text(servers), stream, fixed_digits(documents / count, 0),
             three_digits(quantile(totals, 0.5)), three_digits(quantile(totals, 0.95)),
             three_digits(quantile(cpu_totals, 0.5)), three_digits(quantile(cpu_totals, 0.95)),
             passes});
  return json;
}

void run(const Arguments& arguments) {
  TextTable table({"servers", "stream", "documents", "median ms", "p95 ms", "CPU median ms",
                   "CPU p95 ms", "mean ms of passes"});
  Json json = {{"commit", std::string(build_commit())},
               {"gpus_per_server", arguments.gpus_per_server},
               {"tokens_per_server", 65536},
               {"points", Json::array()}};
  for (const int64_t servers : arguments.servers) {
    for (const std::string& stream : arguments.streams) {
      json["points"].push_back(measure(arguments, servers, stream, table));
    }
  }
  std::cout << "plan and dispatch layout, forward and backward, one core\n" << table.to_text("");
  if (!arguments.json.empty()) write_json_atomic(arguments.json, json);
}

}  // namespace
}  // namespace longspan

int main(int argc, char** argv) {
  CLI::App app("Times the attention planner.");
  longspan::Arguments arguments;
  app.add_option("--servers", arguments.servers, "Numbers of servers")->delimiter(',');
  app.add_option("--streams", arguments.streams, "Length streams")->delimiter(',');
  app.add_option("--batches", arguments.batches, "Batches for each point");
  app.add_option("--gpus-per-server", arguments.gpus_per_server,
                 "GPUs that share a server's heads");
  app.add_option("--json", arguments.json, "Also write the figures to this file");
  CLI11_PARSE(app, argc, argv);
  try {
    longspan::run(arguments);
  } catch (const std::exception& error) {
    std::cerr << "longspan_planner_speed: " << error.what() << "\n";
    return 2;
  }
  return 0;
}
