// The report of a run: one HTML file with inline SVG, readable without a network.
//
//   ReportData report;  report.title = "runs/llama_tiny";  report.facts = {{"model", "..."}, ...};
//   report.train_loss = ...;  report.eval_by_position = ...;  report.balance = ...;
//   write_text_atomic(folder / "report.html", html_report(report));
//
// A part without data is left out. Pure function; any thread.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/range.h"

namespace longspan {

struct StepValue {
  int64_t step = 0;
  double value = 0;
};

struct PositionLoss {
  Range positions;    // in the document
  double loss = 0;    // mean, weighted
  double weight = 0;  // sum of loss weights
};

// Attention of each server, in pairs of tokens; the servers of the two need not be the same.
struct PlanBalance {
  std::string before_name = "every rank its own";
  std::vector<double> before;
  std::vector<double> after;
};

struct MemoryRow {
  std::string name;
  std::optional<int64_t> predicted_bytes;
  std::optional<int64_t> measured_bytes;
};

struct ReportData {
  std::string title;
  std::vector<std::pair<std::string, std::string>> facts;
  std::vector<StepValue> train_loss;
  std::vector<StepValue> eval_loss;
  std::vector<PositionLoss> eval_by_position;
  std::optional<PlanBalance> balance;       // of one step, usually the last
  std::vector<StepValue> imbalance_before;  // of every step
  std::vector<StepValue> imbalance_after;
  std::vector<MemoryRow> memory;
  std::string config_toml;
};

// Max over mean of server times; 1 for an empty or idle list.
double max_over_mean(const std::vector<double>& times);

std::string html_report(const ReportData& report);

}  // namespace longspan
