#include "plan_report/explain_plan.h"

#include <algorithm>
#include <numeric>
#include <set>
#include <utility>

#include "base/error.h"
#include "cost/charged_pairs.h"
#include "observe/number_format.h"
#include "plan_report/plan_figures.h"
#include "plan_report/study_text.h"
#include "plan_report/text_table.h"
#include "planner/prediction_parts.h"

namespace longspan {
namespace {

std::string ms(double seconds) {
  return three_digits(seconds * 1e3);
}

std::string mb(double bytes) {
  return fixed_digits(bytes / 1e6, bytes < 10e6 ? 1 : 0);
}

// What a plan uses of its liberties.
struct PlanTraits {
  int64_t moved_queries = 0;  // computed away from home
  int64_t tasks = 0;
  int64_t tiles_with_cut_keys = 0;
  int64_t passed_on_rows = 0;  // that reach their server by way of another
};

PlanTraits traits_of(const TokenLayout& layout, const AttentionPlan& plan) {
  PlanTraits traits;
  for (int rank = 0; rank < layout.num_ranks(); ++rank) {
    const ServerPlan& server = plan.servers[static_cast<size_t>(rank)];
    const Range piece = layout.piece(plan.chunk, rank);
    traits.moved_queries += rows_outside(server.query_rows, {&piece, 1});
    traits.tasks += std::ssize(server.tasks);
    for (const AttentionTask& task : server.tasks) {
      const bool whole = task.keys.begin == 0 && task.keys.end >= task.queries.end;
      traits.tiles_with_cut_keys += whole ? 0 : 1;
    }
  }
  for (size_t round = 1; round < plan.out.size(); ++round) {
    for (const Transfer& transfer : plan.out[round].transfers) {
      const bool from_home = layout.home(transfer.line.begin).rank == transfer.source;
      traits.passed_on_rows += from_home ? 0 : transfer.line.size();
    }
  }
  return traits;
}

struct Step {
  const char* name;
  bool PassSwitches::*pass;  // null: none
};

// The planner's passes in their order.
constexpr Step kSteps[] = {
    {"home: every query at home", nullptr}, {"+ bands", &PassSwitches::bands},
    {"+ balance", &PassSwitches::balance},  {"+ tiles", &PassSwitches::tiles},
    {"+ relay", &PassSwitches::relay},      {"+ choose", &PassSwitches::choose},
    {"+ refine", &PassSwitches::refine}};

std::string passes_table(const PlanExample& example, Direction direction,
                         const AttentionPlannerOptions& options) {
  TextTable table({"passes", "makespan ms", "max/mean", "enter ms", "exit ms", "sent MB", "max",
                   "queries moved", "tasks", "cut keys", "passed on", "binds"});
  AttentionPlannerOptions step_options = options;
  for (const Step& step : kSteps) {
    if (step.pass != nullptr) step_options.passes.*step.pass = false;
  }
  for (const Step& step : kSteps) {
    if (step.pass != nullptr) {
      if (!(options.passes.*step.pass)) continue;
      step_options.passes.*step.pass = true;
    }
    const PlannedAttention planned =
        plan_attention(example.layout, example.chunk, direction, example.costs, step_options);
    const PlanTraits traits = traits_of(example.layout, planned.plan);
    const PlanFigures figures = figures_of(example.layout, planned.plan, planned.prediction, 0, 0);
    table.add({step.name, ms(figures.makespan_s), fixed_digits(figures.max_over_mean, 4),
               ms(figures.enter_s), ms(figures.exit_s), mb(figures.send_bytes_mean),
               mb(figures.send_bytes_max), text(traits.moved_queries), text(traits.tasks),
               text(traits.tiles_with_cut_keys), text(traits.passed_on_rows),
               binding_name(planned.prediction.binding)});
  }
  return table.to_text();
}

std::string pass_times(const PlannedAttention& planned) {
  std::string result = "  times:";
  for (const PassTime& pass : planned.passes) {
    result += text(" ", pass.name, " ", fixed_digits(pass.seconds * 1e3, 2), " ms,");
  }
  result.back() = '\n';
  return result;
}

std::string window_sentence(const char* leg, double leg_s, double window_s) {
  if (leg_s <= window_s) {
    return text("  ", leg, ": ", ms(leg_s), " ms, hidden under ", ms(window_s),
                " ms of linear layers.\n");
  }
  return text("  ", leg, ": ", ms(leg_s), " ms, of which ", ms(leg_s - window_s),
              " ms are late: linear layers hide ", ms(window_s), " ms.\n");
}

template <typename Key>
size_t largest(const std::vector<ServerPrediction>& servers, const Key& key) {
  const auto found = std::max_element(
      servers.begin(), servers.end(),
      [&](const ServerPrediction& a, const ServerPrediction& b) { return key(a) < key(b); });
  return static_cast<size_t>(found - servers.begin());
}

// Beyond this distance to the bound, as a share of it, it must be said why.
constexpr double kFarFromBound = 0.2;
// Fewer tiles for each server than this cannot be dealt out evenly.
constexpr double kFewTiles = 8;

// Tiles of 128 x 128 in which some query sees some key.
int64_t count_tiles(const AttentionPlan& plan) {
  int64_t pairs = 0;
  for (const ServerPlan& server : plan.servers) {
    for (const AttentionTask& task : server.tasks) pairs += charged_pairs(task.queries, task.keys);
  }
  return pairs / (kBlockTokens * kBlockTokens);
}

// What the plan takes however few rows and pairs there were: the busiest server's launches and
// tasks, and of late exchange latencies and messages.
double fixed_s(const PlanExample& example, Direction direction, const PlannedAttention& planned,
               size_t busiest) {
  PlanningCosts empty_rows = example.costs;
  PassCosts& pass = direction == Direction::kForward ? empty_rows.forward : empty_rows.backward;
  pass.bytes = {};
  const PassRates& rates = pass.attention.rates();
  const ServerPlan& server = planned.plan.servers[busiest];
  const double overheads_s = rates.launch_overhead_s * static_cast<double>(server.groups.size()) +
                             rates.task_overhead_s * static_cast<double>(server.tasks.size());
  const double speed = example.costs.speed[busiest];
  return (speed > 0 ? overheads_s / speed : 0) +
         play_legs(planned.plan, empty_rows).late_s(pass.window);
}

// Why a plan is far from its bound: mostly its batch is too small for its servers.
std::string far_sentence(const PlanExample& example, Direction direction,
                         const PlannedAttention& planned, size_t busiest, double bound_s) {
  const double makespan_s = planned.prediction.makespan_s;
  if (bound_s <= 0 || makespan_s <= (1 + kFarFromBound) * bound_s) return "";
  const auto servers = static_cast<double>(std::count_if(
      example.costs.speed.begin(), example.costs.speed.end(), [](double s) { return s > 0; }));
  const int64_t tiles = count_tiles(planned.plan);
  std::string result = text("  why so far: the bound is ", ms(bound_s), " ms, this plan ",
                            three_digits(100 * (makespan_s / bound_s - 1)), " % above it.");
  if (static_cast<double>(tiles) < kFewTiles * servers) {
    result += text(" The batch is too small to fill the servers: ", tiles,
                   " tiles of 128 x 128 tokens for ", servers,
                   " servers, which cannot be dealt out evenly. The bound lets every server share "
                   "them.");
  }
  const double fixed = fixed_s(example, direction, planned, busiest);
  return result + text(" Launches, tasks and messages cost ", ms(fixed), " ms of the ",
                       ms(makespan_s),
                       " ms however little is computed; the bound counts one launch "
                       "on each server, no message's latency, and the best rate for every tile. "
                       "Fuller batches come nearer to it.\n");
}

std::string reasons(const PlanExample& example, Direction direction,
                    const PlannedAttention& planned) {
  const PlanPrediction& prediction = planned.prediction;
  const double bound_s = lower_bound_s(example.layout, example.chunk, direction, example.costs);
  const double level_s = prediction.compute_s / prediction.max_over_mean;
  const size_t busiest =
      largest(prediction.servers, [](const ServerPrediction& server) { return server.busy_s; });
  const size_t sender = largest(
      prediction.servers, [](const ServerPrediction& server) { return server.out.sent_bytes; });
  const size_t receiver = largest(
      prediction.servers, [](const ServerPrediction& server) { return server.out.received_bytes; });
  const ExchangeWindow& window = example.costs.pass(direction).window;
  std::string result =
      text("  load: server ", busiest, " is the busiest with ", ms(prediction.compute_s),
           " ms; the level of equally busy servers is ", ms(level_s), " ms.\n");
  result += window_sentence("enter", prediction.enter_s, window.enter_s);
  result += window_sentence("exit", prediction.exit_s, window.exit_s);
  result +=
      text("  bytes: server ", sender, " sends the most, ",
           mb(prediction.servers[sender].out.sent_bytes), " MB; server ", receiver,
           " receives the most, ", mb(prediction.servers[receiver].out.received_bytes), " MB.\n");
  const double distance_s = prediction.makespan_s - bound_s;
  const double late_s = prediction.makespan_s - prediction.compute_s;
  // The bound may be above the level: of few tiles, one is more than that.
  const double uneven_s =
      std::min(prediction.compute_s - level_s, std::max(0.0, distance_s - late_s));
  result += text("  bound: no plan is faster than ", ms(bound_s), " ms; this one takes ",
                 ms(prediction.makespan_s), " ms. Of the ", ms(distance_s), " ms between, ",
                 ms(uneven_s), " ms are uneven load, ", ms(late_s),
                 " ms late exchange, the rest tasks that run below the best rate of their "
                 "document.\n");
  return result + far_sentence(example, direction, planned, busiest, bound_s);
}

// How the documents with the most work were cut.
std::string documents_table(const PlanExample& example, const PlannedAttention& planned) {
  struct Cut {
    int64_t pairs = 0;
    int64_t tasks = 0;
    std::set<size_t> servers;
  };
  const TokenLayout& layout = example.layout;
  std::vector<Cut> cuts(static_cast<size_t>(layout.num_documents()));
  int64_t all_pairs = 0;
  for (size_t rank = 0; rank < planned.plan.servers.size(); ++rank) {
    for (const AttentionTask& task : planned.plan.servers[rank].tasks) {
      Cut& cut = cuts[static_cast<size_t>(task.document)];
      const int64_t pairs = visible_pairs(task.queries, task.keys);
      cut.pairs += pairs;
      all_pairs += pairs;
      ++cut.tasks;
      cut.servers.insert(rank);
    }
  }
  std::vector<int32_t> order(cuts.size());
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(), [&](int32_t a, int32_t b) {
    return cuts[static_cast<size_t>(a)].pairs > cuts[static_cast<size_t>(b)].pairs;
  });
  constexpr size_t kShown = 6;
  order.resize(std::min(order.size(), kShown));
  TextTable table({"document", "tokens", "of all work", "at home on", "computed on", "tasks"});
  for (const int32_t document : order) {
    const Cut& cut = cuts[static_cast<size_t>(document)];
    if (cut.tasks == 0) continue;
    std::set<int> homes;
    const Range line = intersect(layout.document(document), layout.chunk(example.chunk));
    for (const auto& [home, part] : layout.split_by_home(line)) homes.insert(home.rank);
    table.add({text(document), text(layout.document_tokens(document)),
               fixed_digits(100.0 * static_cast<double>(cut.pairs) /
                                static_cast<double>(std::max<int64_t>(1, all_pairs)),
                            1) +
                   " %",
               text(homes.size()), text(cut.servers.size()), text(cut.tasks)});
  }
  return table.to_text();
}

std::string explain_direction(const PlanExample& example, Direction direction,
                              const AttentionPlannerOptions& options) {
  const bool forward = direction == Direction::kForward;
  const PlannedAttention& planned = forward ? example.forward : example.backward;
  return text(forward ? "Forward" : "Backward", ", first batch, pass by pass\n",
              passes_table(example, direction, options), pass_times(planned),
              reasons(example, direction, planned), documents_table(example, planned));
}

}  // namespace

std::string explain_plan(const PlanExample& example, const AttentionPlannerOptions& options) {
  const std::string forward = explain_direction(example, Direction::kForward, options);
  if (example.backward.plan.servers.empty()) return forward;
  return forward + "\n" + explain_direction(example, Direction::kBackward, options);
}

}  // namespace longspan
