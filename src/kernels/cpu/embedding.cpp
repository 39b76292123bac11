#include "kernels/cpu/embedding.h"

#include <algorithm>

namespace longspan {

bool token_ids_within(const int32_t* tokens, int64_t rows, int64_t vocabulary) {
  return std::all_of(tokens, tokens + rows,
                     [vocabulary](int32_t id) { return 0 <= id && id < vocabulary; });
}

template <typename Real>
void embedding_gather(const Real* table, const int32_t* tokens, Range rows, int64_t width,
                      Real* x) {
  for (int64_t row = rows.begin; row < rows.end; ++row) {
    std::copy_n(table + tokens[row] * width, width, x + row * width);
  }
}

template <typename Real>
void embedding_scatter_add(const Real* dx, const int32_t* tokens, int64_t rows, Range columns,
                           int64_t width, Real* table_gradient) {
  for (int64_t row = 0; row < rows; ++row) {
    const Real* in = dx + row * width;
    Real* sum = table_gradient + tokens[row] * width;
#pragma omp simd
    for (int64_t c = columns.begin; c < columns.end; ++c) sum[c] += in[c];
  }
}

#define LONGSPAN_INSTANTIATE(Real)                                                    \
  template void embedding_gather(const Real*, const int32_t*, Range, int64_t, Real*); \
  template void embedding_scatter_add(const Real*, const int32_t*, int64_t, Range, int64_t, Real*);
LONGSPAN_INSTANTIATE(float)
LONGSPAN_INSTANTIATE(double)
#undef LONGSPAN_INSTANTIATE

}  // namespace longspan
