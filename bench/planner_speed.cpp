// How long planning takes: plan and dispatch layout of a chunk, both directions, on one core.
//
//   longspan_planner_speed [--servers 64,512] [--batches 30] [--repeats 15] [--json FILE]
//
// A batch's time is that of its forward and its backward plan with their dispatch layouts, in a
// scratch that is kept from batch to batch, as a run keeps it. Each
// batch is planned `repeats` times; the first time counts apart, since a run plans each batch once,
// after other work. Of the first times and of each batch's median and least time: the median and
// the 95th percentile over batches, in CPU time, which other programs disturb least. The passes'
// mean times are those of the least by the clock.
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
#include "planner/planner_scratch.h"

namespace longspan {
namespace {

using Clock = std::chrono::steady_clock;

struct Arguments {
  std::vector<int64_t> servers = {64, 512};
  std::vector<std::string> streams = {"prolong:512K", "pretrain:512K", "hist:128K"};
  int64_t batches = 30;
  int64_t repeats = 15;
  int64_t gpus_per_server = 1;
  std::string json;
};

// Milliseconds of planning one batch once.
struct Sample {
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

Sample time_batch(const PlanRequest& request, const LengthBatch& batch, const PlanningCosts& costs,
                  PlannerScratch* scratch) {
  const TokenLayout layout =
      TokenLayout::make(batch.lengths, {.chunks = 1, .shares = request.token_shares});
  Sample sample;
  for (const Direction direction : {Direction::kForward, Direction::kBackward}) {
    const double cpu_start_ms = cpu_ms_now();
    const PlannedAttention planned = plan_attention(layout, 0, direction, costs, {}, scratch);
    const auto dispatch_start = Clock::now();
    const DispatchLayout dispatch = dispatch_layout(layout, planned.plan);
    const double dispatch_ms = ms_since(dispatch_start);
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

// CPU milliseconds of each batch.
struct BatchTimes {
  std::vector<double> first_ms;
  std::vector<double> median_ms;
  std::vector<double> least_ms;
  Sample passes;  // sums over batches, of the least times

  void add(const std::vector<Sample>& repeats) {
    std::vector<double> times_ms;
    for (const Sample& sample : repeats) times_ms.push_back(sample.cpu_ms);
    const auto least = std::min_element(times_ms.begin(), times_ms.end());
    first_ms.push_back(times_ms.front());
    median_ms.push_back(quantile(times_ms, 0.5));
    least_ms.push_back(*least);
    for (const auto& [name, ms] : repeats[static_cast<size_t>(least - times_ms.begin())].passes) {
      passes.add(name, ms);
    }
  }
};

BatchTimes time_batches(const Arguments& arguments, const PlanRequest& request,
                        double* mean_documents) {
  const PlanningCosts costs = planning_costs(request.target, request.speeds, 65536);
  PlannerScratch scratch;
  BatchTimes times;
  int64_t documents = 0;
  for (int64_t idx = 0; idx < request.batches.count; ++idx) {
    const LengthBatch batch = request.batches.next();
    std::vector<Sample> repeats;
    for (int64_t repeat = 0; repeat < arguments.repeats; ++repeat) {
      repeats.push_back(time_batch(request, batch, costs, &scratch));
    }
    // The first batch warms up.
    if (idx == 0) continue;
    documents += std::ssize(batch.lengths);
    times.add(repeats);
  }
  *mean_documents = static_cast<double>(documents) / static_cast<double>(arguments.batches);
  return times;
}

Json measure(const Arguments& arguments, int64_t servers, const std::string& stream,
             TextTable& table) {
  const PlanRequest request = make_request({.stream = stream,
                                            .servers = servers,
                                            .tokens_per_rank = "64K",
                                            .gpus_per_server = arguments.gpus_per_server,
                                            .batches = arguments.batches + 1});
  double documents = 0;
  const BatchTimes times = time_batches(arguments, request, &documents);
  Json json = {{"servers", servers}, {"stream", stream}, {"documents", documents}};
  std::vector<std::string> cells = {text(servers), stream, fixed_digits(documents, 0)};
  for (const auto& [name, batch_ms] :
       {std::pair("first", &times.first_ms), std::pair("median", &times.median_ms),
        std::pair("least", &times.least_ms)}) {
    json[text(name, "_cpu_ms")] = quantile(*batch_ms, 0.5);
    json[text(name, "_cpu_p95_ms")] = quantile(*batch_ms, 0.95);
    cells.push_back(text(three_digits(quantile(*batch_ms, 0.5)), " (",
                         three_digits(quantile(*batch_ms, 0.95)), ")"));
  }
  std::string passes;
  for (const auto& [name, sum_ms] : times.passes.passes) {
    const double mean_ms = sum_ms / static_cast<double>(arguments.batches);
    json["passes_ms"][name] = mean_ms;
    passes += text(passes.empty() ? "" : ", ", name, " ", three_digits(mean_ms));
  }
  cells.push_back(passes);
  table.add(cells);
  return json;
}

void run(const Arguments& arguments) {
  TextTable table(
      {"servers", "stream", "documents", "first (p95)", "median (p95)", "least (p95)", "passes"});
  Json json = {{"commit", std::string(build_commit())},
               {"gpus_per_server", arguments.gpus_per_server},
               {"tokens_per_server", 65536},
               {"repeats", arguments.repeats},
               {"points", Json::array()}};
  for (const int64_t servers : arguments.servers) {
    for (const std::string& stream : arguments.streams) {
      json["points"].push_back(measure(arguments, servers, stream, table));
    }
  }
  std::cout << "plan and dispatch layout, forward and backward, CPU milliseconds on one core\n"
            << table.to_text("");
  if (!arguments.json.empty()) write_json_atomic(arguments.json, json);
}

}  // namespace
}  // namespace longspan

int main(int argc, char** argv) {
  CLI::App app("Times the attention planner.");
  longspan::Arguments arguments;
  app.add_option("--servers", arguments.servers, "Numbers of servers")->delimiter(',');
  app.add_option("--streams", arguments.streams, "Length streams")->delimiter(',');
  app.add_option("--batches", arguments.batches, "Batches for each point")
      ->check(CLI::PositiveNumber);
  app.add_option("--repeats", arguments.repeats, "How often each batch is planned")
      ->check(CLI::PositiveNumber);
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
