// The planner beside every baseline, on the published evaluation's points: docs/planner_table.md.
//
//   longspan_planner_table --out docs/planner_table.md --json bench/results/planner_table.json
//
// Streams Pretrain and ProLong at 128K, 256K, 512K and Hist at 128K; Llama shapes of 8B and 34B;
// a node of 8 GPUs as a server (W = 8, 32, 64 with 128K tokens each), and every GPU a server
// (W = 64, 128, 512 with 64K tokens each). All policies see the same pieces of documents.
#include <CLI/CLI.hpp>

#include <algorithm>
#include <iostream>
#include <nlohmann/json.hpp>
#include <sstream>

#include "base/error.h"
#include "baselines/registry.h"
#include "formats/json.h"
#include "observe/build_info.h"
#include "observe/number_format.h"
#include "plan_report/plan_request.h"
#include "plan_report/study_text.h"

namespace longspan {
namespace {

struct Arguments {
  std::string out;
  std::string json;
  int64_t batches = 0;  // 0: fewer for more servers
  int64_t least_servers = 1;
  int64_t most_servers = 512;
  std::vector<std::string> models = {"llama-8b", "llama-34b"};
  std::vector<std::string> streams = {"pretrain:128K", "pretrain:256K", "pretrain:512K",
                                      "prolong:128K",  "prolong:256K",  "prolong:512K",
                                      "hist:128K"};
};

struct Servers {
  int64_t count = 0;
  int64_t gpus_each = 1;
  const char* tokens_each = "64K";
  int64_t batches = 1;

  std::string title() const {
    return gpus_each > 1
               ? text(count, " servers of ", gpus_each, " GPUs, ", tokens_each, " tokens each")
               : text(count, " servers of one GPU, ", tokens_each, " tokens each");
  }
};

const std::vector<Servers> kServers = {{8, 8, "128K", 30}, {32, 8, "128K", 16}, {64, 8, "128K", 8},
                                       {64, 1, "64K", 12}, {128, 1, "64K", 5},  {512, 1, "64K", 1}};

struct Point {
  std::string model;
  Servers servers;
  std::string stream;
  int64_t batches = 0;
  BothDirections ours;
  std::vector<BaselineStudy> baselines;
};

Point study_point(const std::string& model, const Servers& servers, const std::string& stream,
                  int64_t batches) {
  const PlanStudy study = study_plans(make_request({.stream = stream,
                                                    .servers = servers.count,
                                                    .tokens_per_rank = servers.tokens_each,
                                                    .model = model,
                                                    .gpus_per_server = servers.gpus_each,
                                                    .batches = batches,
                                                    .all_baselines = true}));
  return {model, servers, stream, batches, study.ours, study.baselines};
}

// "1.003 / 1.004": forward and backward.
template <typename Value>
std::string both(const BothDirections& figures, const Value& value) {
  return value(figures.forward) + " / " + value(figures.backward);
}

std::string mb(double bytes) {
  return fixed_digits(bytes / 1e6, 0);
}

void write_row(const std::string& stream, const std::string& policy, const BothDirections& figures,
               std::ostream& out) {
  out << "| " << stream << " | " << policy;
  const auto cell = [&](const auto& value) { out << " | " << both(figures, value); };
  cell([](const PlanFigures& f) { return fixed_digits(f.max_over_mean, 3); });
  cell([](const PlanFigures& f) { return fixed_digits(f.makespan_s * 1e3, 1); });
  cell([](const PlanFigures& f) {
    return fixed_digits(f.lower_bound_s > 0 ? f.makespan_s / f.lower_bound_s : 1, 3);
  });
  cell([](const PlanFigures& f) { return mb(f.send_bytes_mean); });
  cell([](const PlanFigures& f) { return mb(f.send_bytes_max); });
  cell([](const PlanFigures& f) { return mb(f.send_between_nodes_bytes_max); });
  cell([](const PlanFigures& f) { return mb(f.recv_bytes_mean); });
  cell([](const PlanFigures& f) { return mb(f.recv_bytes_max); });
  cell([](const PlanFigures& f) { return fixed_digits(f.kv_copies_max, 0); });
  cell([](const PlanFigures& f) { return fixed_digits(100 * f.aligned_share, 0); });
  cell([](const PlanFigures& f) { return three_digits(f.plan_ms); });
  out << " |\n";
}

constexpr const char* kTableHead =
    "| stream | policy | max/mean load | makespan ms | over the lower bound | sent MB, mean | sent "
    "MB, max | of that between nodes, max | received MB, mean | received MB, max | K,V copies | "
    "cuts aligned % | plan ms |\n"
    "|---|---|---|---|---|---|---|---|---|---|---|---|---|\n";

std::string with_unit(double share) {
  return fixed_digits(100 * (share - 1), 1) + " %";
}

// The figures that are judged, over all points.
void write_summary(const std::vector<std::string>& models, const std::vector<Point>& points,
                   std::ostream& out) {
  out << "## In short\n\n"
         "| servers | model | makespan over the lower bound: mean of the streams, worst stream | "
         "makespan over the best baseline, in the worst batch and direction | top sender MB, worst "
         "stream | planning ms, worst stream |\n|---|---|---|---|---|---|\n";
  for (const Servers& servers : kServers) {
    for (const std::string& model : models) {
      double sum = 0;
      double worst = 0;
      double ratio = 0;
      double sender = 0;
      double plan_ms = 0;
      std::string rival;
      int count = 0;
      for (const Point& point : points) {
        if (point.model != model || point.servers.title() != servers.title()) continue;
        for (const PlanFigures* figures : {&point.ours.forward, &point.ours.backward}) {
          const double over = figures->makespan_s / figures->lower_bound_s;
          sum += over;
          ++count;
          worst = std::max(worst, over);
          sender = std::max(sender, figures->send_bytes_max);
          plan_ms = std::max(plan_ms, figures->plan_ms);
        }
        for (const BaselineStudy& baseline : point.baselines) {
          if (!baseline.applies || baseline.worst_ratio <= ratio) continue;
          ratio = baseline.worst_ratio;
          rival = baseline.name + " on " + point.stream;
        }
      }
      if (count == 0) continue;
      out << "| " << servers.title() << " | " << model << " | " << with_unit(sum / count) << ", "
          << with_unit(worst) << " | " << fixed_digits(ratio, 3) << " (" << rival << ") | "
          << mb(sender) << " | " << three_digits(plan_ms) << " |\n";
    }
  }
  out << "\n";
}

std::string page(const std::vector<std::string>& models, const std::vector<Point>& points) {
  std::ostringstream out;
  out << "# The planner beside the baselines\n\n"
         "Written by `longspan_planner_table`; do not edit. One layer's attention, predicted by "
         "the "
         "cost model (built-in profile h200, cluster h200_50: measured and published figures, some "
         "assumed; `src/cost/` says which). Each cell: forward / backward, means over the batches "
         "of the point; planning time is the median, measured on the machine that wrote this page. "
         "Bytes are those of one GPU on the way to servers. What each policy does, and how its "
         "traffic is counted: [planner.md](planner.md). The lower bound and the makespan of all "
         "policies hide as much exchange as the linear layers of the other chunk take.\n\n"
         "Commit "
      << build_commit() << ".\n\n";
  write_summary(models, points, out);
  for (const std::string& model : models) {
    for (const Servers& servers : kServers) {
      bool headed = false;
      for (const Point& point : points) {
        if (point.model != model || point.servers.title() != servers.title()) continue;
        if (!headed) {
          out << "## " << model << ", " << servers.title() << ", " << point.batches
              << " batches\n\n"
              << kTableHead;
          headed = true;
        }
        write_row(point.stream, "**longspan**", point.ours, out);
        for (const BaselineStudy& baseline : point.baselines) {
          if (baseline.applies) write_row(point.stream, baseline.name, baseline.mean, out);
        }
      }
      if (headed) out << "\n";
    }
  }
  return out.str();
}

Json point_json(const Point& point) {
  const auto directions = [](const BothDirections& figures) {
    return Json{{"forward", to_json(figures.forward)}, {"backward", to_json(figures.backward)}};
  };
  Json json = {{"model", point.model},
               {"servers", point.servers.count},
               {"gpus_per_server", point.servers.gpus_each},
               {"tokens_per_server", point.servers.tokens_each},
               {"stream", point.stream},
               {"batches", point.batches},
               {"longspan", directions(point.ours)}};
  for (const BaselineStudy& baseline : point.baselines) {
    if (!baseline.applies) continue;
    json["baselines"][baseline.name] = directions(baseline.mean);
    json["baselines"][baseline.name]["worst_ratio"] = baseline.worst_ratio;
  }
  return json;
}

void run(const Arguments& arguments) {
  std::vector<Point> points;
  Json json = {{"commit", std::string(build_commit())}, {"points", Json::array()}};
  for (const std::string& model : arguments.models) {
    for (const Servers& servers : kServers) {
      if (servers.count < arguments.least_servers || servers.count > arguments.most_servers)
        continue;
      for (const std::string& stream : arguments.streams) {
        const int64_t batches = arguments.batches > 0 ? arguments.batches : servers.batches;
        points.push_back(study_point(model, servers, stream, batches));
        const Point& point = points.back();
        json["points"].push_back(point_json(point));
        std::cerr << model << ", " << servers.title() << ", " << stream << ": "
                  << fixed_digits(point.ours.forward.makespan_s / point.ours.forward.lower_bound_s,
                                  3)
                  << " / "
                  << fixed_digits(
                         point.ours.backward.makespan_s / point.ours.backward.lower_bound_s, 3)
                  << " of the lower bound\n";
      }
      // A run that is stopped leaves what it has.
      write_text_atomic(arguments.out, page(arguments.models, points));
      if (!arguments.json.empty()) write_json_atomic(arguments.json, json);
    }
  }
}

}  // namespace
}  // namespace longspan

int main(int argc, char** argv) {
  CLI::App app("Writes the table of the planner beside the baselines.");
  longspan::Arguments arguments;
  app.add_option("--out", arguments.out, "Markdown page to write")->required();
  app.add_option("--json", arguments.json, "JSON file to write");
  app.add_option("--batches", arguments.batches, "Batches of each point; default 30 down to 2");
  app.add_option("--models", arguments.models, "Models; default both")->delimiter(',');
  app.add_option("--streams", arguments.streams, "Streams; default all")->delimiter(',');
  app.add_option("--least-servers", arguments.least_servers,
                 "Leave smaller numbers of servers out");
  app.add_option("--most-servers", arguments.most_servers, "Leave larger numbers of servers out");
  CLI11_PARSE(app, argc, argv);
  try {
    longspan::run(arguments);
  } catch (const std::exception& error) {
    std::cerr << "longspan_planner_table: " << error.what() << "\n";
    return 2;
  }
  return 0;
}
