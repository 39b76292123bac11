// Token embedding: rows of a table gathered by token id, and their gradients added back.
//
//   embedding_gather(table, tokens, {0, rows}, width, x);
//   embedding_scatter_add(dx, tokens, rows, {0, width}, width, table_gradient);
//
// The same token may stand in many rows, so the backward is cut by columns, never by rows: every
// element of the gradient is summed over rows in their order, whatever the number of threads.
// Token ids must lie within the table; callers check that (token_ids_within).
// Thread contract: pure on disjoint rows (gather), disjoint columns (scatter).
#pragma once

#include <cstdint>

#include "base/range.h"

namespace longspan {

// Whether all ids are in [0, vocabulary).
bool token_ids_within(const int32_t* tokens, int64_t rows, int64_t vocabulary);

template <typename Real>
void embedding_gather(const Real* table, const int32_t* tokens, Range rows, int64_t width, Real* x);

template <typename Real>
void embedding_scatter_add(const Real* dx, const int32_t* tokens, int64_t rows, Range columns,
                           int64_t width, Real* table_gradient);

}  // namespace longspan
