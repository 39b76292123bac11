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

// Which group takes each document.
struct Deal {
  int ranks_per_group = 1;
  std::vector<int32_t> documents;  // longest first
  std::vector<size_t> chosen;      // group of each of them
  std::vector<Group> groups;
};

Deal deal_documents(const TokenLayout& layout, const WlbOptions& options, int ranks_per_group) {
  LONGSPAN_CHECK(ranks_per_group >= 1 && layout.num_ranks() % ranks_per_group == 0, "groups of ",
                 ranks_per_group, " among ", layout.num_ranks(), " ranks");
  Deal deal{.ranks_per_group = ranks_per_group};
  deal.groups.resize(static_cast<size_t>(layout.num_ranks() / ranks_per_group));
  const double most_tokens = options.slack * static_cast<double>(layout.num_tokens()) /
                             static_cast<double>(deal.groups.size());
  deal.documents.resize(static_cast<size_t>(layout.num_documents()));
  std::iota(deal.documents.begin(), deal.documents.end(), 0);
  std::stable_sort(deal.documents.begin(), deal.documents.end(), [&](int32_t a, int32_t b) {
    return layout.document_tokens(a) > layout.document_tokens(b);
  });
  for (const int32_t document : deal.documents) {
    const int64_t tokens = layout.document_tokens(document);
    const size_t chosen = choose_group(deal.groups, tokens, most_tokens);
    const double x = static_cast<double>(tokens) / options.breakpoint_tokens;
    deal.groups[chosen].work += x * x + x;
    deal.groups[chosen].tokens += tokens;
    deal.chosen.push_back(chosen);
  }
  return deal;
}

Baseline place_groups(const BaselineInput& input, const Deal& deal) {
  Baseline baseline = begin_baseline(input, BaselineExchange::kGather);
  baseline.ranks_per_group = deal.ranks_per_group;
  for (size_t idx = 0; idx < deal.documents.size(); ++idx) {
    place_head_tail(input.layout, deal.documents[idx],
                    static_cast<int>(deal.chosen[idx]) * deal.ranks_per_group, deal.ranks_per_group,
                    &baseline);
  }
  finish_baseline(input.layout, &baseline);
  return baseline;
}

// What no cut of the documents undercuts: all visible pairs at the highest rate, evenly spread.
double least_mean_compute_s(const BaselineInput& input, const PlanningCosts& costs) {
  const AttentionCost& cost = costs.pass(input.direction).attention;
  double pairs = 0;
  for (int32_t document = 0; document < input.layout.num_documents(); ++document) {
    const auto tokens = static_cast<double>(input.layout.document_tokens(document));
    pairs += tokens * (tokens + 1) / 2;
  }
  double rate = 0;
  for (const RateGrid* grid : {&cost.rates().causal, &cost.rates().full}) {
    const std::vector<double>& rates = grid->flops_per_s();
    rate = std::max(rate, *std::max_element(rates.begin(), rates.end()));
  }
  const double speeds = std::accumulate(costs.speed.begin(), costs.speed.end(), 0.0);
  constexpr double kRounding = 1 - 1e-9;
  return kRounding * pairs * cost.flops_per_pair() / rate / speeds;
}

// By how much the keys that enter the node with the fewest rows of its own are late at least, in
// the group with the most tokens.
double least_late_s(const BaselineInput& input, const Deal& deal, const PlanningCosts& costs) {
  const LinkClass& link = costs.links.between_nodes;
  const int per_node = std::min(costs.links.servers_per_node, deal.ranks_per_group);
  // Groups that do not begin where nodes do may lie on one node more, and one rank of it.
  if (link.bytes_per_s <= 0 || deal.ranks_per_group % per_node != 0 ||
      costs.links.servers_per_node % per_node != 0) {
    return 0;
  }
  int64_t most_tokens = 0;
  for (const Group& group : deal.groups) most_tokens = std::max(most_tokens, group.tokens);
  const double nodes = static_cast<double>(deal.ranks_per_group) / per_node;
  const double rows = static_cast<double>(most_tokens) * (1 - 1 / nodes) / per_node;
  const PassCosts& pass = costs.pass(input.direction);
  const auto late_s = [&](double row_bytes, double window_s) {
    constexpr double kRounding = 1 - 1e-9;
    return std::max(0.0, kRounding * rows * row_bytes / link.bytes_per_s - window_s);
  };
  return late_s(pass.bytes.key_out, pass.window.enter_s) +
         (pass.bytes.key_back > 0 ? late_s(pass.bytes.key_back_partial, pass.window.exit_s) : 0);
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
  return place_groups(input, deal_documents(input.layout, options, ranks_per_group));
}

// Groups that cannot be better than the best so far are not cut into slices: large ones have many.
Baseline wlb(const BaselineInput& input, const WlbOptions& options, const PlanningCosts& costs) {
  std::optional<Baseline> best;
  double best_s = 0;
  const double least_compute_s = least_mean_compute_s(input, costs);
  for (int size = 1; size <= input.layout.num_ranks(); ++size) {
    if (input.layout.num_ranks() % size != 0) continue;
    const Deal deal = deal_documents(input.layout, options, size);
    if (best && least_compute_s + least_late_s(input, deal, costs) >= best_s) continue;
    Baseline candidate = place_groups(input, deal);
    const double makespan_s = predict_baseline(input.layout, candidate, costs).makespan_s;
    if (best && makespan_s >= best_s) continue;
    best = std::move(candidate);
    best_s = makespan_s;
  }
  return std::move(*best);
}

}  // namespace longspan
