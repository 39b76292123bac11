#include "kernels/cpu/rope.h"

#include <cmath>

namespace longspan {

template <typename Real>
void rope_table(const float* inverse_frequencies, int64_t half, double scaling,
                const int64_t* positions, Range tokens, Real* cosines, Real* sines) {
  for (int64_t token = tokens.begin; token < tokens.end; ++token) {
    const auto position = static_cast<float>(positions[token]);
    for (int64_t i = 0; i < half; ++i) {
      const float angle = position * inverse_frequencies[i];
      cosines[token * half + i] = std::cos(static_cast<Real>(angle)) * static_cast<Real>(scaling);
      sines[token * half + i] = std::sin(static_cast<Real>(angle)) * static_cast<Real>(scaling);
    }
  }
}

template <typename Real>
void rope_rotate(const Real* q, const Real* cosines, const Real* sines, Range tokens, int64_t heads,
                 int64_t width, int direction, Real* rotated) {
  const int64_t half = width / 2;
  const auto sign = static_cast<Real>(direction);
  for (int64_t token = tokens.begin; token < tokens.end; ++token) {
    const Real* cosine = cosines + token * half;
    const Real* sine = sines + token * half;
    for (int64_t head = 0; head < heads; ++head) {
      const Real* in = q + (token * heads + head) * width;
      Real* out = rotated + (token * heads + head) * width;
#pragma omp simd
      for (int64_t i = 0; i < half; ++i) {
        const Real low = in[i];
        const Real high = in[i + half];
        const Real turn = sign * sine[i];
        out[i] = low * cosine[i] - high * turn;
        out[i + half] = high * cosine[i] + low * turn;
      }
    }
  }
}

#define LONGSPAN_INSTANTIATE(Real)                                                               \
  template void rope_table(const float*, int64_t, double, const int64_t*, Range, Real*, Real*);  \
  template void rope_rotate(const Real*, const Real*, const Real*, Range, int64_t, int64_t, int, \
                            Real*);
LONGSPAN_INSTANTIATE(float)
LONGSPAN_INSTANTIATE(double)
#undef LONGSPAN_INSTANTIATE

}  // namespace longspan
