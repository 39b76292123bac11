#include "observe/step_metrics.h"

#include <chrono>

#include "observe/number_format.h"

namespace longspan {
namespace {

template <typename Value>
void add_if_known(Scalars& list, const char* name, const std::optional<Value>& value,
                  double scale = 1) {
  if (value) list.emplace_back(name, static_cast<double>(*value) * scale);
}

}  // namespace

std::optional<double> StepMetrics::mfu() const {
  if (!flops || !peak_flops || step_s <= 0 || *peak_flops <= 0) return std::nullopt;
  return *flops / step_s / *peak_flops;
}

Scalars scalars(const StepMetrics& metrics) {
  Scalars list;
  if (!metrics.skipped) {
    list.emplace_back("loss", metrics.loss);
    list.emplace_back("loss_metrics/global_avg_loss", metrics.loss);
    add_if_known(list, "loss_metrics/global_max_loss", metrics.loss_max);
    list.emplace_back("grad_norm", metrics.grad_norm);
  }
  list.emplace_back("lr", metrics.learning_rate);
  list.emplace_back("learning_rate", metrics.learning_rate);
  add_if_known(list, "epoch", metrics.epoch);
  list.emplace_back("throughput(tps)", metrics.tokens_per_s());
  if (metrics.flops && metrics.step_s > 0) {
    list.emplace_back("tflops", *metrics.flops / metrics.step_s * 1e-12);
  }
  add_if_known(list, "mfu(%)", metrics.mfu(), 100);
  list.emplace_back("time_metrics/end_to_end(s)", metrics.step_s);
  list.emplace_back("time_metrics/data_loading(s)", metrics.data_s);
  if (metrics.step_s > 0) {
    list.emplace_back("time_metrics/data_loading(%)", 100 * metrics.data_s / metrics.step_s);
  }
  list.emplace_back("memory/max_active(GiB)", gib(metrics.memory_peak_bytes));
  if (metrics.memory_limit_bytes > 0) {
    list.emplace_back("memory/max_active(%)", 100 * static_cast<double>(metrics.memory_peak_bytes) /
                                                  static_cast<double>(metrics.memory_limit_bytes));
  }
  if (metrics.memory_reserved_bytes) {
    list.emplace_back("memory/max_reserved(GiB)", gib(*metrics.memory_reserved_bytes));
  }
  add_if_known(list, "memory/device_allocations", metrics.device_allocations);
  if (metrics.memory_predicted_bytes) {
    list.emplace_back("mem/predicted(GiB)", gib(*metrics.memory_predicted_bytes));
  }
  add_if_known(list, "plan/imbalance_max_over_mean", metrics.imbalance);
  add_if_known(list, "plan/home_imbalance_max_over_mean", metrics.imbalance_home);
  add_if_known(list, "plan/send_bytes_max", metrics.send_bytes_max);
  add_if_known(list, "plan/plan_ms", metrics.plan_ms);
  add_if_known(list, "plan/plan_exposed_ms", metrics.plan_exposed_ms);
  add_if_known(list, "experts/load_max_over_mean", metrics.expert_imbalance);
  add_if_known(list, "experts/idle", metrics.idle_experts);
  add_if_known(list, "ca/server_busy(%)", metrics.server_busy, 100);
  add_if_known(list, "ca/exposed_comm(s)", metrics.exposed_comm_s);
  list.emplace_back("pack/fill(%)", 100 * metrics.pack_fill);
  list.emplace_back("docs/longest", static_cast<double>(metrics.longest_document));
  add_if_known(list, "docs/seen", metrics.documents_seen);
  list.emplace_back("tokens/step", static_cast<double>(metrics.tokens));
  list.emplace_back("tokens/weighted", metrics.weighted_tokens);
  add_if_known(list, "tokens/seen", metrics.tokens_seen);
  return list;
}

Scalars scalars(const EvalMetrics& metrics) {
  return {{"eval_loss", metrics.loss},
          {"validation_metrics/loss", metrics.loss},
          {"validation_metrics/tokens", static_cast<double>(metrics.tokens)},
          {"validation_metrics/end_to_end(s)", metrics.eval_s}};
}

double unix_seconds() {
  const auto now = std::chrono::system_clock::now().time_since_epoch();
  return std::chrono::duration<double>(now).count();
}

}  // namespace longspan
