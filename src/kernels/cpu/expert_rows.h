// Rows of tokens on their way to experts and back.
//
//   gather_rows(x, tokens, {0, count}, width, packed);            // packed[r] = x[tokens[r]]
//   add_rows(packed, tokens, nullptr, {0, count}, width, y);      // y[tokens[r]] += packed[r]
//   add_rows(out, rows, weights, {0, count}, width, y);           // y[rows[r]] += weights[r]
//   out[r]
//
// Row-major, contiguous; the places of one call to add_rows are distinct, so rows may be dealt to
// threads and sums have the order of the calls.
// Thread contract: pure on disjoint rows.
#pragma once

#include <cstdint>

#include "base/range.h"

namespace longspan {

template <typename Real>
void gather_rows(const Real* source, const int64_t* places, Range rows, int64_t width,
                 Real* packed);

// `weights` may be null: ones.
template <typename Real>
void add_rows(const Real* packed, const int64_t* places, const Real* weights, Range rows,
              int64_t width, Real* sum);

// rows[r] *= weights[r].
template <typename Real>
void scale_rows(const Real* weights, Range rows, int64_t width, Real* values);

// dots[r] = <a[r], b[r]>.
template <typename Real>
void row_dots(const Real* a, const Real* b, Range rows, int64_t width, Real* dots);

}  // namespace longspan
