#include "baselines/document_policies.h"

#include <algorithm>
#include <numeric>
#include <optional>

#include "base/check.h"

namespace longspan {
namespace {

// Cuts a document over `count` ranks from `first` on.
void place_head_tail(const TokenLayout& layout, int32_t document, int first, int count,
                     Baseline* baseline) {
  const int64_t tokens = layout.document_tokens(document);
  const int64_t slices = 2 * int64_t{count};
  const int64_t size = (tokens + slices - 1) / slices;
  for (int64_t idx = 0; idx * size < tokens; ++idx) {
    const Range positions{idx * size, std::min((idx + 1) * size, tokens)};
    const int rank = first + static_cast<int>(std::min(idx, slices - 1 - idx));
    const Range line = layout.to_line(document, positions);
    add_task({document, positions, line}, rank, baseline);
    baseline->homes.push_back({line, rank});
  }
}

struct Group {
  double work = 0;
  int64_t tokens = 0;
};

// The group for a document of this work and length.
size_t choose_group(const std::vector<Group>& groups, int64_t tokens, double most_tokens) {
  const auto fits = [&](const Group& group) {
    return static_cast<double>(group.tokens + tokens) <= most_tokens;
  };
  const auto least_work = std::min_element(
      groups.begin(), groups.end(), [](const Group& a, const Group& b) { return a.work < b.work; });
  if (fits(*least_work)) return static_cast<size_t>(least_work - groups.begin());
  const auto fewest_tokens =
      std::min_element(groups.begin(), groups.end(),
                       [](const Group& a, const Group& b) { return a.tokens < b.tokens; });
  return static_cast<size_t>((fits(*fewest_tokens) ? fewest_tokens : least_work) - groups.begin());
}

}  // namespace

Baseline per_document_head_tail(const BaselineInput& input) {
  Baseline baseline = begin_baseline(input, BaselineExchange::kGather);
  const int ranks = input.layout.num_ranks();
  baseline.ranks_per_group = ranks;
  for (int32_t document = 0; document < input.layout.num_documents(); ++document) {
    place_head_tail(input.layout, document, 0, ranks, &baseline);
  }
  finish_baseline(input.layout, &baseline);
  return baseline;
}

Baseline wlb_groups(const BaselineInput& input, const WlbOptions& options, int ranks_per_group) {
  const TokenLayout& layout = input.layout;
  LONGSPAN_CHECK(ranks_per_group >= 1 && layout.num_ranks() % ranks_per_group == 0, "groups of ",
                 ranks_per_group, " among ", layout.num_ranks(), " ranks");
  Baseline baseline = begin_baseline(input, BaselineExchange::kGather);
  baseline.ranks_per_group = ranks_per_group;
  std::vector<Group> groups(static_cast<size_t>(layout.num_ranks() / ranks_per_group));
  const double most_tokens =
      options.slack * static_cast<double>(layout.num_tokens()) / static_cast<double>(groups.size());
  std::vector<int32_t> documents(static_cast<size_t>(layout.num_documents()));
  std::iota(documents.begin(), documents.end(), 0);
  std::stable_sort(documents.begin(), documents.end(), [&](int32_t a, int32_t b) {
    return layout.document_tokens(a) > layout.document_tokens(b);
  });
  for (const int32_t document : documents) {
    const int64_t tokens = layout.document_tokens(document);
    const size_t chosen = choose_group(groups, tokens, most_tokens);
    const double x = static_cast<double>(tokens) / options.breakpoint_tokens;
    groups[chosen].work += x * x + x;
    groups[chosen].tokens += tokens;
    place_head_tail(layout, document, static_cast<int>(chosen) * ranks_per_group, ranks_per_group,
                    &baseline);
  }
  finish_baseline(layout, &baseline);
  return baseline;
}

Baseline wlb(const BaselineInput& input, const WlbOptions& options, const PlanningCosts& costs) {
  std::optional<Baseline> best;
  double best_s = 0;
  for (int size = 1; size <= input.layout.num_ranks(); ++size) {
    if (input.layout.num_ranks() % size != 0) continue;
    Baseline candidate = wlb_groups(input, options, size);
    const double makespan_s = predict_baseline(input.layout, candidate, costs).makespan_s;
    if (best && makespan_s >= best_s) continue;
    best = std::move(candidate);
    best_s = makespan_s;
  }
  return std::move(*best);
}

}  // namespace longspan
