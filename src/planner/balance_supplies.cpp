#include "planner/balance_supplies.h"

#include <algorithm>

namespace longspan {

double row_cost_s(const TileDraft& draft, const Tile& tile) {
  const int64_t rows = std::min(kBlockTokens, tile.queries.size());
  return draft.cost_s(tile, {tile.queries.end - rows, tile.queries.end});
}

bool has_nodes(const TileDraft& draft) {
  const int per_node = draft.costs().links.servers_per_node;
  return per_node > 1 && per_node < draft.num_ranks();
}

BalanceSupplies::BalanceSupplies(const TileDraft& draft, const BalanceLevels& levels)
    : draft_(draft), levels_(levels) {
  const RowBytes& bytes = draft.pass_costs().bytes;
  query_bytes_ = bytes.query_out + bytes.query_back;
  key_bytes_ = bytes.key_out + bytes.key_back_partial;
}

void BalanceSupplies::collect(double mean_deficit_s) {
  mean_deficit_s_ = mean_deficit_s;
  supplies_.clear();
  surplus_s_.assign(static_cast<size_t>(draft_.num_ranks()), 0.0);
  for (int rank = 0; rank < draft_.num_ranks(); ++rank) {
    if (levels_.gives(rank)) surplus_s_[static_cast<size_t>(rank)] = -levels_.deficit_s(rank);
  }
  find_strays();
  auto stray = stray_offers_.begin();
  for (int rank = 0; rank < draft_.num_ranks(); ++rank) {
    const double surplus_s = surplus_s_[static_cast<size_t>(rank)];
    if (surplus_s <= 0) continue;
    offers_.clear();
    const IndexRange own = draft_.first_tiles(rank);
    for (size_t idx = own.begin; idx < own.end; ++idx) {
      if (draft_.tile(idx).server == rank) offers_.push_back(offer_of(idx, surplus_s));
    }
    for (; stray != stray_offers_.end() && stray->server == rank; ++stray) {
      offers_.push_back(*stray);
    }
    accept(surplus_s);
  }
}

// Of tiles that are not where they were cut: those on no server, guests, and what servers that give
// have to offer.
void BalanceSupplies::find_strays() {
  guests_.clear();
  stray_offers_.clear();
  for (const size_t idx : draft_.touched()) {
    if (!draft_.is_stray(idx)) continue;
    const Tile& tile = draft_.tile(idx);
    if (tile.server == kUnplaced) {
      supplies_.push_back({idx, tile.cost_s});
      continue;
    }
    if (tile.server != tile.home) guests_.emplace_back(tile.document, tile.server);
    const double surplus_s = surplus_s_[static_cast<size_t>(tile.server)];
    if (surplus_s > 0) stray_offers_.push_back(offer_of(idx, surplus_s));
  }
  std::sort(guests_.begin(), guests_.end());
  guests_.erase(std::unique(guests_.begin(), guests_.end()), guests_.end());
  std::sort(stray_offers_.begin(), stray_offers_.end(),
            [](const Offer& a, const Offer& b) { return a.server < b.server; });
}

BalanceSupplies::Offer BalanceSupplies::offer_of(size_t idx, double surplus_s) const {
  const Tile& tile = draft_.tile(idx);
  const double amount_s = std::min(surplus_s, tile.cost_s);
  return {tile.server, bytes_to_give(tile, amount_s) / amount_s, idx};
}

// An estimate: every taker fetches all keys of the tile.
double BalanceSupplies::bytes_to_give(const Tile& tile, double amount_s) const {
  const auto rows = static_cast<double>(tile.queries.size()) * amount_s / tile.cost_s;
  const double takers = std::max(1.0, amount_s / mean_deficit_s_);
  return rows * query_bytes_ + takers * static_cast<double>(tile.keys.size()) * key_bytes_;
}

// Fewest bytes for the work first: that is long documents for much work and short ones for little.
// A tile whose smallest stretch is far more than what is left stays. Few are taken of many, so the
// offers are not sorted.
void BalanceSupplies::accept(double surplus_s) {
  std::make_heap(offers_.begin(), offers_.end());
  for (auto end = offers_.end(); surplus_s > 0 && end != offers_.begin(); --end) {
    std::pop_heap(offers_.begin(), end);
    const size_t idx = std::prev(end)->tile;
    const Tile& tile = draft_.tile(idx);
    if (row_cost_s(draft_, tile) > 2 * surplus_s) continue;
    supplies_.push_back({idx, std::min(surplus_s, tile.cost_s)});
    surplus_s -= supplies_.back().amount_s;
  }
}

void BalanceSupplies::order_by_document() {
  // A document's last taker may be alone in its node; then it had better be one that needs few
  // keys.
  const bool last_first = has_nodes(draft_);
  std::sort(supplies_.begin(), supplies_.end(), [&](const Supply& one, const Supply& other) {
    const Tile& a = draft_.tile(one.tile);
    const Tile& b = draft_.tile(other.tile);
    if (a.document != b.document) return a.document < b.document;
    if (a.queries.begin != b.queries.begin) {
      return (a.queries.begin < b.queries.begin) != last_first;
    }
    return a.keys.begin < b.keys.begin;
  });
}

std::vector<SupplyGroup> BalanceSupplies::groups() {
  order_by_document();
  std::vector<SupplyGroup> groups;
  double total_s = 0;
  for (size_t idx = 0; idx < supplies_.size(); ++idx) {
    const int32_t document = draft_.tile(supplies_[idx].tile).document;
    if (idx == 0 || document != draft_.tile(supplies_[idx - 1].tile).document) {
      groups.push_back({idx, idx, 0});
    }
    groups.back().end = idx + 1;
    groups.back().amount_s += supplies_[idx].amount_s;
    total_s += supplies_[idx].amount_s;
  }
  const double large_s = total_s / static_cast<double>(8 * draft_.num_ranks());
  std::stable_sort(groups.begin(), groups.end(), [&](const SupplyGroup& a, const SupplyGroup& b) {
    const double one = a.amount_s >= large_s ? a.amount_s : 0;
    const double other = b.amount_s >= large_s ? b.amount_s : 0;
    return one > other;
  });
  return groups;
}

}  // namespace longspan
