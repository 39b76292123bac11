#include "experts/expert_order.h"

#include <numeric>

#include "base/check.h"
#include "base/narrow.h"

namespace longspan {

ExpertOrder expert_order(const ExpertBatch& batch, int64_t experts) {
  std::vector<int64_t> next(static_cast<size_t>(experts) + 1);
  for (const int32_t expert : batch.experts) {
    LONGSPAN_CHECK(expert >= 0 && expert < experts, "expert ", expert, " of ", experts);
    ++next[static_cast<size_t>(expert) + 1];
  }
  std::partial_sum(next.begin(), next.end(), next.begin());
  ExpertOrder order;
  order.ends.reserve(static_cast<size_t>(experts));
  for (size_t expert = 1; expert < next.size(); ++expert) {
    order.ends.push_back(narrow<int32_t>(next[expert]));
  }
  order.pairs.resize(batch.experts.size());
  order.rows.resize(batch.experts.size());
  for (size_t pair = 0; pair < batch.experts.size(); ++pair) {
    const auto place = static_cast<size_t>(next[static_cast<size_t>(batch.experts[pair])]++);
    order.pairs[place] = static_cast<int64_t>(pair);
    order.rows[place] = batch.rows[pair];
  }
  return order;
}

PlacesOfRows places_of_rows(const ExpertOrder& order, int64_t rows) {
  PlacesOfRows of;
  of.begins.resize(static_cast<size_t>(rows) + 1);
  for (const int64_t row : order.rows) ++of.begins[static_cast<size_t>(row) + 1];
  std::partial_sum(of.begins.begin(), of.begins.end(), of.begins.begin());
  std::vector<int64_t> next(of.begins.begin(), of.begins.end() - 1);
  of.places.resize(order.rows.size());
  for (size_t place = 0; place < order.rows.size(); ++place) {
    const auto at = static_cast<size_t>(next[static_cast<size_t>(order.rows[place])]++);
    of.places[at] = static_cast<int64_t>(place);
  }
  return of;
}

}  // namespace longspan
