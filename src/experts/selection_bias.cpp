#include "experts/selection_bias.h"

#include <numeric>

#include "base/check.h"

namespace longspan {

std::vector<double> updated_selection_bias(std::span<const double> bias,
                                           std::span<const int64_t> loads, double rate) {
  LONGSPAN_CHECK(bias.size() == loads.size() && rate >= 0, bias.size(), " biases, ", loads.size(),
                 " loads, rate ", rate);
  const int64_t total = std::accumulate(loads.begin(), loads.end(), int64_t{0});
  std::vector<double> updated(bias.begin(), bias.end());
  for (size_t e = 0; e < loads.size(); ++e) {
    const int64_t scaled = loads[e] * std::ssize(loads);  // compared exactly with the mean
    if (scaled < total) updated[e] += rate;
    if (scaled > total) updated[e] -= rate;
  }
  return updated;
}

}  // namespace longspan
