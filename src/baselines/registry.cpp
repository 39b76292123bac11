#include "baselines/registry.h"

#include <algorithm>
#include <functional>
#include <utility>

#include "base/error.h"
#include "base/nearest_name.h"
#include "baselines/document_policies.h"
#include "baselines/line_policies.h"
#include "baselines/published_greedy.h"

namespace longspan {
namespace {

using Make = std::function<std::optional<Baseline>(const BaselineBatch&, const PlanningCosts&)>;

Make line_policy(Baseline (*policy)(const BaselineInput&)) {
  return [policy](const BaselineBatch& batch, const PlanningCosts&) { return policy(batch.input); };
}

Make chunk_heap_of(int64_t chunk_tokens) {
  return [chunk_tokens](const BaselineBatch& batch, const PlanningCosts&) {
    return chunk_heap(batch.input, chunk_tokens);
  };
}

std::optional<Baseline> make_dp(const BaselineBatch& batch, const PlanningCosts&) {
  if (std::ssize(batch.pack_borders) != batch.input.layout.num_ranks() + 1) return std::nullopt;
  return data_parallel(batch.input, batch.pack_borders);
}

std::optional<Baseline> make_wlb(const BaselineBatch& batch, const PlanningCosts& costs) {
  return wlb(batch.input, {.breakpoint_tokens = batch.wlb_breakpoint_tokens}, costs);
}

Make published(double epsilon) {
  return [epsilon](const BaselineBatch& batch, const PlanningCosts& costs) {
    const RowBytes& bytes = costs.pass(batch.input.direction).bytes;
    return published_greedy(
        batch.input,
        {.epsilon = epsilon, .query_bytes = bytes.query_out, .key_bytes = bytes.key_out});
  };
}

const std::vector<std::pair<std::string, Make>>& policies() {
  static const std::vector<std::pair<std::string, Make>> kPolicies = {
      {"home", line_policy(stay_home)},
      {"dp", make_dp},
      {"contiguous", line_policy(contiguous)},
      {"zigzag", line_policy(zigzag)},
      {"per-document", line_policy(per_document_head_tail)},
      {"ptrr", line_policy(sorted_blocks)},
      {"chunk-heap", chunk_heap_of(512)},
      {"chunk-heap-2048", chunk_heap_of(2048)},
      {"wlb", make_wlb},
      {"published-0.05", published(0.05)},
      {"published-0.1", published(0.1)},
  };
  return kPolicies;
}

}  // namespace

std::vector<std::string> baseline_names() {
  std::vector<std::string> names;
  for (const auto& [name, make] : policies()) names.push_back(name);
  return names;
}

void check_baseline_name(const std::string& name) {
  const std::vector<std::string> names = baseline_names();
  if (std::find(names.begin(), names.end(), name) != names.end()) return;
  std::string known;
  for (const std::string& other : names) known += (known.empty() ? "" : ", ") + other;
  throw UserError(text("unknown baseline \"", name, "\"; did you mean \"",
                       nearest_name(name, names), "\"? There are: ", known));
}

std::optional<Baseline> make_baseline(const std::string& name, const BaselineBatch& batch,
                                      const PlanningCosts& costs) {
  check_baseline_name(name);
  for (const auto& [known, make] : policies()) {
    if (known == name) return make(batch, costs);
  }
  return std::nullopt;
}

}  // namespace longspan
