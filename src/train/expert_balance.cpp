#include "train/expert_balance.h"

#include <algorithm>

#include "experts/selection_bias.h"
#include "observe/report.h"

namespace longspan {

std::vector<ExpertLoads> expert_loads(const ModelSpec& spec, const StepTotals& totals,
                                      Communicator& comm) {
  const auto experts = static_cast<size_t>(spec.experts.num_experts);
  std::vector<ExpertLoads> loads;
  std::vector<double> sums;  // a layer's after another's; a rank without tokens has none
  for (int layer = 0; layer < spec.num_layers; ++layer) {
    if (!spec.layer_kind(layer).has_experts) continue;
    loads.push_back({layer, {}});
    sums.resize(sums.size() + experts);
    const auto own = totals.expert_loads.find(layer);
    if (own == totals.expert_loads.end()) continue;
    std::copy(own->second.begin(), own->second.end(), sums.end() - std::ssize(own->second));
  }
  if (loads.empty()) return loads;
  comm.all_reduce_sum(sums, "loads of experts");  // whole numbers below 2^53: exact
  auto next = sums.begin();
  for (ExpertLoads& of_layer : loads) {
    const auto end = next + static_cast<std::ptrdiff_t>(experts);
    std::transform(next, end, std::back_inserter(of_layer.tokens),
                   [](double sum) { return static_cast<int64_t>(sum); });
    next = end;
  }
  return loads;
}

std::optional<double> expert_imbalance(const std::vector<ExpertLoads>& loads) {
  if (loads.empty()) return std::nullopt;
  double worst = 1;
  for (const ExpertLoads& of_layer : loads) {
    worst = std::max(worst, max_over_mean({of_layer.tokens.begin(), of_layer.tokens.end()}));
  }
  return worst;
}

std::optional<int64_t> idle_experts(const std::vector<ExpertLoads>& loads) {
  if (loads.empty()) return std::nullopt;
  int64_t idle = 0;
  for (const ExpertLoads& of_layer : loads) {
    idle += std::count(of_layer.tokens.begin(), of_layer.tokens.end(), 0);
  }
  return idle;
}

void move_selection_bias(const std::vector<ExpertLoads>& loads, double rate,
                         const ParameterTable& parameters, ParameterStore& store) {
  if (rate == 0) return;
  for (const ExpertLoads& of_layer : loads) {
    store.add_to_weight(parameters.layer(of_layer.layer).router_bias,
                        selection_bias_steps(of_layer.tokens, rate));
  }
}

}  // namespace longspan
