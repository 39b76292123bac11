#include "model/initialize.h"

#include <algorithm>

#include "base/random.h"
#include "layers/parallel_ranges.h"

namespace longspan {
namespace {

constexpr int64_t kBlockElements = 4096;

template <typename Real>
void fill_normal(const Parameter& parameter, uint64_t seed, const Range& elements, Real* values) {
  const Range blocks{elements.begin / kBlockElements,
                     (elements.end + kBlockElements - 1) / kBlockElements};
  parallel_ranges(blocks, 1, [&](Range part) {
    for (int64_t block = part.begin; block < part.end; ++block) {
      RandomStream random(seed, "initialize " + parameter.name, static_cast<uint64_t>(block));
      const Range here{block * kBlockElements,
                       std::min(elements.end, (block + 1) * kBlockElements)};
      for (int64_t i = here.begin; i < here.end; ++i) {
        const double value = random.normal() * parameter.init_std;
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
          case InitKind::kOnes:
            return std::fill(out.begin(), out.end(), 1);
          case InitKind::kNormal:
            return fill_normal(parameter, seed, elements, out.data());
        }
      },
      values);
}

}  // namespace longspan
