#include "train/run_log.h"

#include <algorithm>
#include <cmath>
#include <fstream>
#include <iomanip>
#include <nlohmann/json.hpp>
#include <sstream>

#include "base/error.h"
#include "checkpoint/publish_folder.h"
#include "formats/atomic_file.h"
#include "formats/json.h"
#include "observe/console.h"
#include "observe/number_format.h"

namespace longspan {
namespace {

constexpr size_t kDocumentsShown = 5;
constexpr std::string_view kByPosition = "eval_by_position";
constexpr std::string_view kPositionPrefix = "position/";

std::filesystem::path folder_of(const RunSetup& setup) {
  return setup.config().output.folder;
}

JsonlLog open_log(const RunSetup& setup, const RunHeader& header, int64_t resumed_step) {
  make_folder(folder_of(setup));
  const auto path = folder_of(setup) / "log.jsonl";
  return resumed_step > 0 ? JsonlLog::resume(path, resumed_step, header)
                          : JsonlLog::start(path, header);
}

RunHeader header_of(const RunSetup& setup, const TrainProcess& process) {
  return {.config_toml = setup.loaded.toml(),
          .config_hash = setup.loaded.hash(),
          .version = process.version,
          .commit = process.commit,
          .kernels = process.kernels};
}

std::string row(const std::string& name, int64_t tokens, const LossSum& sum) {
  std::ostringstream line;
  line << "  " << std::left << std::setw(34) << name << std::right << std::setw(12) << tokens
       << std::fixed << std::setprecision(4) << std::setw(12);
  if (sum.weight > 0) {
    line << sum.mean_loss();
  } else {
    line << "-";
  }
  return line.str() + "\n";
}

Json loss_json(const LossSum& sum) {
  Json value;
  value["weight"] = sum.weight;
  value["loss"] = sum.weight > 0 ? Json(sum.mean_loss()) : Json(nullptr);
  return value;
}

Json bins_json(const EvalResult& result) {
  Json bins = Json::array();
  for (const PositionBin& bin : result.bins) {
    Json entry = loss_json(bin);
    entry["begin"] = bin.positions.begin;
    entry["end"] = bin.positions.end;
    bins.push_back(std::move(entry));
  }
  return bins;
}

// "position/4096-8192/loss" and ".../weight" for each bin that predicted something.
Scalars position_scalars(const EvalResult& result) {
  Scalars values;
  for (const PositionBin& bin : result.bins) {
    if (bin.weight <= 0) continue;
    const std::string name = text(kPositionPrefix, bin.positions.begin, "-", bin.positions.end);
    values.emplace_back(name + "/loss", bin.mean_loss());
    values.emplace_back(name + "/weight", bin.weight);
  }
  return values;
}

std::vector<PositionLoss> parse_positions(const Json& entry) {
  std::vector<PositionLoss> bins;
  for (const auto& [name, value] : entry.items()) {
    if (!name.starts_with(kPositionPrefix) || !name.ends_with("/loss")) continue;
    const std::string bin = name.substr(0, name.rfind('/'));
    const size_t dash = bin.find('-');
    const Range positions{std::stoll(bin.substr(kPositionPrefix.size(), dash)),
                          std::stoll(bin.substr(dash + 1))};
    bins.push_back({positions, value, entry.at(bin + "/weight")});
  }
  return bins;
}

// What the JSONL log knows, as the report wants it.
void add_logged(const std::filesystem::path& path, ReportData* report) {
  std::ifstream stream(path);
  for (std::string line; std::getline(stream, line);) {
    const Json entry = Json::parse(line, nullptr, /*allow_exceptions=*/false);
    if (!entry.is_object()) continue;
    const std::string kind = entry.value("kind", "");
    const auto add = [&](const char* name, std::vector<StepValue>* values) {
      // A loss that is not a number stands as null, and has no place in a curve.
      const bool known = entry.contains(name) && entry.at(name).is_number();
      if (known) values->push_back({entry.at("step"), entry.at(name)});
    };
    if (kind == "step") {
      add("loss", &report->train_loss);
      add("plan/home_imbalance_max_over_mean", &report->imbalance_before);
      add("plan/imbalance_max_over_mean", &report->imbalance_after);
    } else if (kind == "eval") {
      add("eval_loss", &report->eval_loss);
    } else if (kind == kByPosition) {
      report->eval_by_position = parse_positions(entry);
    }
  }
}

}  // namespace

RunLog::RunLog(const RunSetup& setup, const TrainProcess& process, int64_t resumed_step)
    : setup_(setup),
      process_(process),
      peak_(process.peak),
      jsonl_(open_log(setup, header_of(setup, process), resumed_step)) {
  write_text_atomic(folder_of(setup) / "config.toml", setup.loaded.toml());
  if (setup.config().output.tensorboard) {
    events_.emplace(folder_of(setup) / "tensorboard",
                    resumed_step > 0 ? std::optional(resumed_step) : std::nullopt);
  }
}

void RunLog::note(const std::string& line) {
  *process_.console << line << std::endl;
}

void RunLog::step(StepMetrics metrics) {
  if (metrics.flops && metrics.step_s > 0 && peak_.raise_to(*metrics.flops / metrics.step_s)) {
    note(
        text("peak: step ", metrics.step, " was faster than the matrix products measured at the ",
             "start (was the machine busy then?); mfu is a share of the fastest step from now on"));
  }
  metrics.peak_flops = peak_.per_second;
  jsonl_.write(metrics);
  if (events_) events_->add_scalars(metrics.step, scalars(metrics));
  const bool shown =
      metrics.step % setup_.config().output.log_every == 0 || metrics.step == metrics.total_steps;
  if (shown) *process_.console << step_line(metrics) << std::endl;
}

void RunLog::evaluation(int64_t step, const EvalResult& result, double eval_s) {
  if (result.total.weight <= 0) {
    note("evaluation: no token of the held-out documents has a loss weight");
    return;
  }
  EvalMetrics metrics;
  metrics.step = step;
  metrics.loss = result.total.mean_loss();
  metrics.tokens = std::llround(result.total.weight);
  metrics.eval_s = eval_s;
  jsonl_.write(metrics);
  jsonl_.write(kByPosition, step, position_scalars(result));
  if (events_) events_->add_scalars(step, scalars(metrics));
  note(text("evaluation after step ", step, ": loss ", std::fixed, std::setprecision(4),
            metrics.loss, " on ", metrics.tokens, " predicted tokens (", result.pack.describe(),
            ")"));
}

void RunLog::write_report(const std::optional<PlanBalance>& balance) {
  ReportData report;
  report.title = folder_of(setup_).string();
  const ModelSpec& spec = setup_.spec;
  report.facts = {
      {"model", text(model_family_name(spec.family), ", ", spec.num_layers, " layers x ",
                     spec.hidden_size, ", ", setup_.parameters.total_elements(), " parameters")},
      {"ranks x chunks", text(setup_.num_ranks(), " x ", setup_.planner.chunks)},
      {"micro-batch", text(setup_.config().batch.micro_batch_tokens, " tokens")},
      {"stored mode", setup_.config().layout.stored_mode},
      {"peak", peak_.description},
      {"commit", process_.commit.empty() ? "unknown" : process_.commit},
  };
  report.balance = balance;
  report.config_toml = setup_.loaded.toml();
  add_logged(folder_of(setup_) / "log.jsonl", &report);
  write_text_atomic(folder_of(setup_) / "report.html", html_report(report));
}

void RunLog::summary(const std::string& checkpoint, const PackReport& packed,
                     const PlannedStep* last_step) {
  const auto folder = folder_of(setup_);
  note("");
  note(text("checkpoint   ", checkpoint));
  note(text("log          ", (folder / "log.jsonl").string()));
  if (events_) note(text("tensorboard  ", (folder / "tensorboard").string()));
  if (std::filesystem::exists(folder / "report.html")) {
    note(text("report       ", (folder / "report.html").string(),
              " (loss, balance of attention; open in a browser)"));
  }
  if (packed.documents_skipped > 0) note(text("left out     ", packed.describe_skipped()));
  if (last_step != nullptr && setup_.planner.core_attention && setup_.num_ranks() > 1) {
    note(text("balance      attention of the busiest rank over the mean, worst chunk of the last ",
              "step: ", std::fixed, std::setprecision(2), last_step->home_imbalance,
              " if every rank kept its own, ", last_step->imbalance, " as planned (imb)"));
  }
}

std::string evaluation_table(const EvalResult& result) {
  std::string table = "  position in document                     tokens        loss\n";
  for (const PositionBin& bin : result.bins) {
    table +=
        row(text(bin.positions.begin, " .. ", bin.positions.end), std::llround(bin.weight), bin);
  }
  table += row("all", std::llround(result.total.weight), result.total);
  std::vector<const DocumentLoss*> longest;
  for (const DocumentLoss& document : result.documents) longest.push_back(&document);
  std::sort(longest.begin(), longest.end(),
            [](const auto* a, const auto* b) { return a->tokens > b->tokens; });
  longest.resize(std::min(longest.size(), kDocumentsShown));
  table += "  longest documents\n";
  for (const DocumentLoss* document : longest) {
    const std::string name = std::filesystem::path(document->name).filename().string();
    table += row(document->weight > 0 ? name : name + " (left out)", document->tokens, *document);
  }
  return table;
}

Json evaluation_json(const EvalResult& result) {
  Json json = loss_json(result.total);
  json["bins"] = bins_json(result);
  json["documents"] = Json::array();
  for (const DocumentLoss& document : result.documents) {
    Json entry = loss_json(document);
    entry["name"] = document.name;
    entry["tokens"] = document.tokens;
    entry["bins"] = Json::array();
    for (const LossSum& bin : document.bins) entry["bins"].push_back(loss_json(bin));
    json["documents"].push_back(std::move(entry));
  }
  return json;
}

}  // namespace longspan
