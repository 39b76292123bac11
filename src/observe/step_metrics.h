// What one training step is known by. The trainer fills one record a step; the console line, the
// JSONL log and the TensorBoard file all write from it.
//
//   StepMetrics metrics;  metrics.step = 120;  metrics.loss = 1.9231;  ...
//   log.write(metrics);  events.add_scalars(metrics.step, scalars(metrics));
//
// Names are those that dashboards of torchtitan and of the HF Trainer already show, with ours
// beside them. What was not measured stays empty and is left out everywhere, never written as 0.
// Plain values; any thread.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace longspan {

using Scalars = std::vector<std::pair<std::string, double>>;

struct StepMetrics {
  int64_t step = 0;  // steps done, this one counted in
  int64_t total_steps = 0;
  double loss = 0;                 // sum of weighted token losses over the sum of weights
  std::optional<double> loss_max;  // largest mean of a document
  double grad_norm = 0;            // before clipping
  double learning_rate = 0;
  std::optional<double> epoch;
  bool skipped = false;  // the step's loss weights added up to 0

  int64_t tokens = 0;          // of the step, all ranks
  double weighted_tokens = 0;  // sum of loss weights: what the loss was divided by
  int64_t longest_document = 0;
  double pack_fill = 0;  // tokens over the room of the step's micro-batches
  std::optional<int64_t> documents_seen;
  std::optional<int64_t> tokens_seen;

  double step_s = 0;
  double data_s = 0;                 // waiting for data
  std::optional<double> flops;       // model FLOPs of the step (spec/flops.h)
  std::optional<double> peak_flops;  // measured peak of all devices, per second
  std::optional<double> eta_s;

  std::optional<double> imbalance;        // of the executed plans: max over mean
  std::optional<double> imbalance_home;   // without moving attention
  std::optional<double> plan_ms;          // beside the step before
  std::optional<double> plan_exposed_ms;  // of it, what the step waited for
  std::optional<int64_t> send_bytes_max;
  // Tokens of the busiest expert over the mean, worst layer; experts without a token, all layers.
  std::optional<double> expert_imbalance;
  std::optional<int64_t> idle_experts;
  std::optional<double> server_busy;  // share of the step
  std::optional<double> exposed_comm_s;

  int64_t memory_peak_bytes = 0;
  int64_t memory_limit_bytes = 0;
  std::optional<int64_t> memory_reserved_bytes;  // of a device
  std::optional<int64_t> device_allocations;     // so far; does not grow after the first steps
  std::optional<int64_t> memory_predicted_bytes;

  double tokens_per_s() const { return step_s > 0 ? static_cast<double>(tokens) / step_s : 0; }
  std::optional<double> mfu() const;  // fraction
};

struct EvalMetrics {
  int64_t step = 0;
  double loss = 0;
  int64_t tokens = 0;
  double eval_s = 0;
};

// Names and values for dashboards.
Scalars scalars(const StepMetrics& metrics);
Scalars scalars(const EvalMetrics& metrics);

// Seconds since 1970.
double unix_seconds();

}  // namespace longspan
