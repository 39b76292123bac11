#include "model/initialize.h"

#include <algorithm>
#include <cmath>

#include "base/random.h"
#include "layers/parallel_ranges.h"

namespace longspan {
namespace {

constexpr int64_t kBlockElements = 4096;

// Uniform in [0, 1) -> the logarithm of a value from 1 to 16.
double decay_rate(double uniform) {
  return std::log(1 + 15 * uniform);
}

// -> the value whose softplus is a time step, log-uniform from 0.001 to 0.1.
double time_step_bias(double uniform) {
  const double step = std::exp(std::log(1e-3) + uniform * std::log(100.0));
  return step + std::log(-std::expm1(-step));
}

// `draw` takes an element's value from the stream of its block; elements come in order.
template <typename Real, typename Draw>
void fill_drawn(const Parameter& parameter, uint64_t seed, const Range& elements, Real* values,
                const Draw& draw) {
  const Range blocks{elements.begin / kBlockElements,
                     (elements.end + kBlockElements - 1) / kBlockElements};
  parallel_ranges(blocks, 1, [&](Range part) {
    for (int64_t block = part.begin; block < part.end; ++block) {
      RandomStream random(seed, "initialize " + parameter.name, static_cast<uint64_t>(block));
      const Range here{block * kBlockElements,
                       std::min(elements.end, (block + 1) * kBlockElements)};
      for (int64_t i = here.begin; i < here.end; ++i) {
        const double value = draw(random);
        if (elements.contains(i)) values[i - elements.begin] = static_cast<Real>(value);
      }
    }
  });
}

}  // namespace

void initialize_parameter(const Parameter& parameter, uint64_t seed, const Range& elements,
                          const RealSpan& values) {
  LONGSPAN_CHECK(
      Range(0, parameter.elements()).contains(elements) && element_count(values) == elements.size(),
      parameter.name, ": ", elements, " of ", parameter.elements(), " elements into ",
      element_count(values));
  std::visit(
      [&](auto out) {
        switch (parameter.init) {
          case InitKind::kZeros:
            return std::fill(out.begin(), out.end(), 0);
          case InitKind::kOnes:
            return std::fill(out.begin(), out.end(), 1);
          case InitKind::kNormal:
            return fill_drawn(parameter, seed, elements, out.data(), [&](RandomStream& random) {
              return random.normal() * parameter.init_std;
            });
          case InitKind::kDecayRate:
            return fill_drawn(parameter, seed, elements, out.data(),
                              [](RandomStream& random) { return decay_rate(random.uniform()); });
          case InitKind::kTimeStepBias:
            return fill_drawn(parameter, seed, elements, out.data(), [](RandomStream& random) {
              return time_step_bias(random.uniform());
            });
        }
      },
      values);
}

}  // namespace longspan
