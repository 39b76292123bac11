// Private to experts/: the pairs of a batch, one expert after the other.
//
//   const ExpertOrder order = expert_order(batch, num_experts);
//   order.pairs[s]                   // pair at place s of the order
//   order.ends[e]                    // first place behind those of expert e
//
// Experts ascend and pairs of one expert keep their order, so every sum that runs along the order
// runs over a row's experts in ascending order. Pure functions.
#pragma once

#include <cstdint>
#include <vector>

#include "base/range.h"
#include "experts/expert_products.h"

namespace longspan {

struct ExpertOrder {
  std::vector<int64_t> pairs;
  std::vector<int64_t> rows;  // of each pair, in the order
  std::vector<int32_t> ends;

  Range places(int64_t expert) const {
    const auto at = static_cast<size_t>(expert);
    return {at == 0 ? 0 : ends[at - 1], ends[at]};
  }
};

ExpertOrder expert_order(const ExpertBatch& batch, int64_t experts);

// The places of each row: row r has places[begins[r]] to places[begins[r + 1] - 1], ascending.
struct PlacesOfRows {
  std::vector<int64_t> begins;
  std::vector<int64_t> places;
};

PlacesOfRows places_of_rows(const ExpertOrder& order, int64_t rows);

}  // namespace longspan
