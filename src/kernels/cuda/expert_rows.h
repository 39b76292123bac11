// Rows of tokens on their way to experts and back, on a GPU: twin of kernels/cpu/expert_rows.h.
//
//   cuda::gather_rows(x, tokens, count, width, packed, stream);      // packed[r] = x[tokens[r]]
//   cuda::add_rows(packed, tokens, count, width, y, stream);         // y[tokens[r]] += packed[r]
//   cuda::combine_rows({out, nullptr}, {begins, places}, weights, rows, width, y, stream);
//
// Rows are of the run's type, sums of its accumulation type. What the CPU adds expert by expert,
// combine_rows adds in one pass: row r of the result is the sum over its places, in their order,
// so it is rounded once. The places of one call to add_rows are distinct.
#pragma once

#include "kernels/cuda/cuda_types.h"

namespace longspan::cuda {

template <typename T>
void gather_rows(const T* source, const int64_t* places, int64_t rows, int64_t width, T* packed,
                 Stream stream);

template <typename T>
void add_rows(const T* packed, const int64_t* places, int64_t rows, int64_t width,
              Accumulate<T>* sum, Stream stream);

// The places of row r are places[begins[r]] to places[begins[r + 1] - 1].
struct RowPlaces {
  const int64_t* begins;
  const int64_t* places;
};

// One array of rows, or two that are added.
template <typename T>
struct CombinedRows {
  const T* first;
  const T* second;  // may be null
};

// y[r] = sum over its places p of weights[p] (first[p] + second[p]); `weights` may be null: ones.
template <typename T>
void combine_rows(const CombinedRows<T>& rows_of_places, const RowPlaces& at,
                  const Accumulate<T>* weights, int64_t rows, int64_t width, T* y, Stream stream);

// Backward of an expert between its products, for rows r of gate, up and da, the gradient of
// a = swiglu(gate, up) before the row's weight:
//   dots[places[r]] = <da, a>;  a_weighted = weights[r] a;
//   dgate, dup = backward of SwiGLU for weights[r] da
// `dup` may be `da`. A NaN stays one; a clamped number gets no gradient.
template <typename T>
struct WeightedSwiglu {
  const T* gate;
  const T* up;
  const T* da;
  const Accumulate<T>* weights;
  const int64_t* places;
  T* a_weighted;
  T* dgate;
  T* dup;
  Accumulate<T>* dots;
};

template <typename T>
void weighted_swiglu_backward(const WeightedSwiglu<T>& arrays, double limit, int64_t rows,
                              int64_t width, Stream stream);

}  // namespace longspan::cuda
