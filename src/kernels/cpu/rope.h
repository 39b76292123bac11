// Rotary position embedding with a table of cosines and sines per token.
//
// Why a table: the angles depend on positions only, so one table serves queries, keys, all heads,
// all layers, forward and backward of a piece.
//
//   rope_table(inverse_frequencies, half, scaling, positions, {0, tokens}, cosines, sines);
//   rope_rotate(q, cosines, sines, {0, tokens}, heads, 2 * half, +1, rotated);   // forward
//   rope_rotate(dq, cosines, sines, {0, tokens}, heads, 2 * half, -1, gradient);  // backward
//
// Convention of Hugging Face: element i of a head turns with element i + half by the angle
// position * inverse_frequencies[i]. `scaling` (yarn's attention factor) multiplies both columns.
// Positions are document positions. Shapes: q tokens x heads x width contiguous; tables
// tokens x half.
// Thread contract: pure on disjoint token ranges.
#pragma once

#include <cstdint>

#include "base/range.h"

namespace longspan {

// Angles are fp32 products of fp32 factors in either type, as the reference implementation forms
// them: at position 100,000 another rounding turns a head by 0.004. float64 tables hold the cosine
// of that same angle, in double.
template <typename Real>
void rope_table(const float* inverse_frequencies, int64_t half, double scaling,
                const int64_t* positions, Range tokens, Real* cosines, Real* sines);

// direction +1 turns forward, -1 back. `rotated` may be `q`.
template <typename Real>
void rope_rotate(const Real* q, const Real* cosines, const Real* sines, Range tokens, int64_t heads,
                 int64_t width, int direction, Real* rotated);

}  // namespace longspan
