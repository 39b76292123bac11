#include "plan_report/study_text.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <numeric>

#include "base/error.h"
#include "observe/number_format.h"
#include "plan_report/model_text.h"
#include "plan_report/text_table.h"

namespace longspan {
namespace {

std::string ms(double seconds) {
  return three_digits(seconds * 1e3) + " ms";
}

std::string mb(double bytes) {
  return fixed_digits(bytes / 1e6, bytes < 10e6 ? 1 : 0);
}

std::string percent(double share) {
  return fixed_digits(share * 100, 1) + " %";
}

std::string over_bound(const PlanFigures& figures) {
  if (figures.lower_bound_s <= 0) return "-";
  return percent(figures.makespan_s / figures.lower_bound_s - 1);
}

std::string planned_of(const ModelSpec& model) {
  if (plans_index_scoring(model)) {
    return text("index of ", model.index.num_heads, " heads of ", model.index.head_dim,
                ", the best ", model.index.selected_pools(), " pools of ", model.index.pool,
                " tokens");
  }
  return text(model.num_query_heads, " query and ", model.num_kv_heads, " key heads of ",
              model.head_dim);
}

std::string head(const PlanStudy& study) {
  const PlanRequest& request = study.request;
  const PlanTarget& target = request.target;
  const int64_t batches = request.batches.count;
  const int64_t tokens = study.example.layout.num_tokens();
  std::string result =
      text(request.title, ": ", batches, batches == 1 ? " batch of " : " batches of ",
           token_length(tokens), " tokens (the first in ", study.example.layout.num_documents(),
           " documents) on ", request.speeds.size(), " servers");
  if (target.gpus_per_server > 1) result += text(" of ", target.gpus_per_server, " GPUs");
  if (request.chunks > 1) result += text(", ", request.chunks, " chunks");
  result += text("\nmodel ", planned_of(target.model), "; cluster ", target.cluster.name,
                 "\nkernel times of ", target.profile.name, ": ", target.profile.source, "\n");
  const ExchangeWindow& window = study.example.costs.forward.window;
  result += window.enter_s > 0
                ? text("linear layers hide ", ms(window.enter_s), " of each exchange forward, ",
                       ms(study.example.costs.backward.window.enter_s), " backward\n")
                : "nothing hides exchange\n";
  return result;
}

std::string figures_table(const PlanStudy& study) {
  const PlanFigures& forward = study.ours.forward;
  const PlanFigures& backward = study.ours.backward;
  const bool both = study.request.backward;
  TextTable table(both ? std::vector<std::string>{"", "forward", "backward"}
                       : std::vector<std::string>{"", "forward"});
  const auto row = [&](const char* name, const auto& format) {
    std::vector<std::string> cells = {name, format(forward)};
    if (both) cells.push_back(format(backward));
    table.add(std::move(cells));
  };
  using Figures = PlanFigures;
  row("max / mean load", [](const Figures& f) { return fixed_digits(f.max_over_mean, 4); });
  row("makespan", [](const Figures& f) { return ms(f.makespan_s); });
  row("  busiest server", [](const Figures& f) { return ms(f.compute_s); });
  row("  enter, exit", [](const Figures& f) { return ms(f.enter_s) + ", " + ms(f.exit_s); });
  row("lower bound", [](const Figures& f) { return ms(f.lower_bound_s); });
  row("distance to it", over_bound);
  row("sent, mean and max MB",
      [](const Figures& f) { return mb(f.send_bytes_mean) + ", " + mb(f.send_bytes_max); });
  row("received, mean and max MB",
      [](const Figures& f) { return mb(f.recv_bytes_mean) + ", " + mb(f.recv_bytes_max); });
  row("results sent, mean and max MB", [](const Figures& f) {
    return mb(f.back_send_bytes_mean) + ", " + mb(f.back_send_bytes_max);
  });
  row("memory for others' rows, max MB", [](const Figures& f) { return mb(f.memory_bytes_max); });
  row("copies of K,V on a server", [](const Figures& f) { return three_digits(f.kv_copies_max); });
  row("cuts on 128-blocks", [](const Figures& f) { return percent(f.aligned_share); });
  row("planning, median", [](const Figures& f) { return three_digits(f.plan_ms) + " ms"; });
  return table.to_text();
}

std::vector<std::string> comparison_row(const std::string& name, const PlanFigures& f) {
  return {name,
          fixed_digits(f.max_over_mean, 3),
          fixed_digits(f.makespan_s * 1e3, 2),
          over_bound(f),
          mb(f.send_bytes_mean),
          mb(f.send_bytes_max),
          mb(f.recv_bytes_max),
          three_digits(f.kv_copies_max),
          percent(f.aligned_share),
          three_digits(f.plan_ms)};
}

std::string comparison(const PlanStudy& study, PlanFigures BothDirections::*direction,
                       const char* name) {
  TextTable table({name, "max/mean", "makespan ms", "over bound", "sent MB", "max", "received max",
                   "K,V copies", "aligned", "plan ms"});
  table.add(comparison_row("longspan", study.ours.*direction));
  for (const BaselineStudy& baseline : study.baselines) {
    if (baseline.applies) {
      table.add(comparison_row(baseline.name, baseline.mean.*direction));
    } else {
      table.add({baseline.name, "does not apply: packs and servers differ in number"});
    }
  }
  return table.to_text();
}

// The servers to show: all, or those at the ends by load and the top senders.
std::vector<size_t> shown_servers(const PlanPrediction& prediction) {
  constexpr size_t kAll = 32;
  constexpr size_t kEach = 8;
  std::vector<size_t> all(prediction.servers.size());
  std::iota(all.begin(), all.end(), size_t{0});
  if (all.size() <= kAll) return all;
  std::vector<size_t> shown;
  const auto take = [&](const auto& key) {
    std::vector<size_t> order = all;
    std::stable_sort(order.begin(), order.end(), [&](size_t a, size_t b) {
      return key(prediction.servers[a]) > key(prediction.servers[b]);
    });
    shown.insert(shown.end(), order.begin(), order.begin() + kEach);
  };
  take([](const ServerPrediction& server) { return server.busy_s; });
  take([](const ServerPrediction& server) { return -server.busy_s; });
  take([](const ServerPrediction& server) { return server.out.sent_bytes; });
  take([](const ServerPrediction& server) { return server.out.received_bytes; });
  std::sort(shown.begin(), shown.end());
  shown.erase(std::unique(shown.begin(), shown.end()), shown.end());
  return shown;
}

std::string servers_table(const PlanExample& example, const PlannedAttention& planned) {
  const PlanPrediction& prediction = planned.prediction;
  const double level_s =
      prediction.max_over_mean > 0 ? prediction.compute_s / prediction.max_over_mean : 0;
  TextTable table({"server", "tokens", "tasks", "load ms", "of level", "sent MB", "received MB",
                   "results sent MB", "received MB", "memory MB"});
  const std::vector<size_t> shown = shown_servers(prediction);
  for (const size_t idx : shown) {
    const ServerPrediction& server = prediction.servers[idx];
    const auto tokens = example.layout.piece(example.chunk, static_cast<int>(idx)).size();
    table.add({text(idx), text(tokens), text(planned.plan.servers[idx].tasks.size()),
               fixed_digits(server.busy_s * 1e3, 3),
               level_s > 0 ? percent(server.busy_s / level_s) : "-", mb(server.out.sent_bytes),
               mb(server.out.received_bytes), mb(server.back.sent_bytes),
               mb(server.back.received_bytes), mb(server.memory_bytes)});
  }
  std::string result = table.to_text();
  if (shown.size() < prediction.servers.size()) {
    result += text("  ", prediction.servers.size() - shown.size(),
                   " servers in between are left out; the JSON has all\n");
  }
  result += text("  what binds: ", binding_name(prediction.binding), "\n");
  return result;
}

Json server_json(const PlannedAttention& planned) {
  Json list = Json::array();
  for (size_t idx = 0; idx < planned.prediction.servers.size(); ++idx) {
    const ServerPrediction& server = planned.prediction.servers[idx];
    list.push_back({{"tasks", planned.plan.servers[idx].tasks.size()},
                    {"busy_s", server.busy_s},
                    {"sent_bytes", server.out.sent_bytes},
                    {"received_bytes", server.out.received_bytes},
                    {"sent_between_nodes_bytes", server.out.sent_between_nodes_bytes},
                    {"results_sent_bytes", server.back.sent_bytes},
                    {"results_received_bytes", server.back.received_bytes},
                    {"memory_bytes", server.memory_bytes},
                    {"key_rows", server.key_rows}});
  }
  return list;
}

Json both_json(const BothDirections& figures, bool backward) {
  Json json = to_json(figures.forward);
  if (backward) json["backward"] = to_json(figures.backward);
  return json;
}

}  // namespace

std::string binding_name(BindingConstraint binding) {
  switch (binding) {
    case BindingConstraint::kCompute:
      return "compute";
    case BindingConstraint::kSend:
      return "send";
    case BindingConstraint::kReceive:
      return "receive";
    case BindingConstraint::kNothing:
      break;
  }
  return "nothing";
}

std::string study_text(const PlanStudy& study) {
  std::string result = head(study);
  result += text("\n", study.request.backward ? "One layer" : "Scoring of one layer's index",
                 ", means over batches; bytes of one GPU\n", figures_table(study));
  if (!study.baselines.empty()) {
    result += "\nBeside the baselines\n" + comparison(study, &BothDirections::forward, "forward") +
              "\n" + comparison(study, &BothDirections::backward, "backward");
  }
  result += "\nServers of the first batch, forward\n" +
            servers_table(study.example, study.example.forward);
  if (study.request.backward) {
    result += "\nServers of the first batch, backward\n" +
              servers_table(study.example, study.example.backward);
  }
  return result + model_text(study);
}

Json study_json(const PlanStudy& study) {
  Json json = both_json(study.ours, study.request.backward);
  json["baselines"] = Json::object();
  json["not_applicable"] = Json::array();
  for (const BaselineStudy& baseline : study.baselines) {
    if (baseline.applies) {
      json["baselines"][baseline.name] = both_json(baseline.mean, true);
      json["baselines"][baseline.name]["worst_ratio"] = baseline.worst_ratio;
    } else {
      json["not_applicable"].push_back(baseline.name);
    }
  }
  const PlanRequest& request = study.request;
  json["input"] = {{"documents", request.title},
                   {"batches", request.batches.count},
                   {"servers", request.speeds.size()},
                   {"gpus_per_server", request.target.gpus_per_server},
                   {"chunks", request.chunks},
                   {"cluster", request.target.cluster.name},
                   {"profile", request.target.profile.name},
                   {"enter_window_s", study.example.costs.forward.window.enter_s},
                   {"exit_window_s", study.example.costs.forward.window.exit_s}};
  json["binding"] = binding_name(study.example.forward.prediction.binding);
  json["servers"] = server_json(study.example.forward);
  if (study.request.backward) {
    json["backward"]["binding"] = binding_name(study.example.backward.prediction.binding);
    json["backward"]["servers"] = server_json(study.example.backward);
  }
  json["model"] = model_json(study);
  return json;
}

}  // namespace longspan
