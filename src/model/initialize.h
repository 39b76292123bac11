// Random initial weights, the same for every number of ranks and every way of sharding.
//
// Why by element: a rank fills its own slice only; the whole parameter never needs to exist.
// Element i of a parameter depends on (seed, parameter name, i) alone, through blocks of 4,096
// elements that have a random stream each.
//
//   initialize_parameter(parameter, seed, {begin, end}, shard);      // end - begin elements
//
// Parameter::init says how: matrices and the embedding are normal with the parameter's standard
// deviation, norms are ones, and so on.
// float32 values are those of float64, rounded.
// Pure function; uses the calling thread's share of threads.
#pragma once

#include "base/real_span.h"
#include "spec/parameter_table.h"

namespace longspan {

// `elements` counts in the parameter's flat row-major order; `values` has as many.
void initialize_parameter(const Parameter& parameter, uint64_t seed, const Range& elements,
                          const RealSpan& values);

}  // namespace longspan
