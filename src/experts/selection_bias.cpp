#include "experts/selection_bias.h"

#include <numeric>

#include "base/check.h"

namespace longspan {

std::vector<double> selection_bias_steps(std::span<const int64_t> loads, double rate) {
  LONGSPAN_CHECK(rate >= 0, "rate ", rate);
  const int64_t total = std::accumulate(loads.begin(), loads.end(), int64_t{0});
  std::vector<double> steps(loads.size(), 0.0);
  for (size_t e = 0; e < loads.size(); ++e) {
    const int64_t scaled = loads[e] * std::ssize(loads);  // compared exactly with the mean
    if (scaled < total) steps[e] = rate;
    if (scaled > total) steps[e] = -rate;
  }
  return steps;
}

}  // namespace longspan
