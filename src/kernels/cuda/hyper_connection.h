// Hyper-connections (mHC) on a GPU: twin of kernels/cpu/hyper_connection.h.
//
//   cuda::hyper_read_forward(shape, {streams, base, scale}, tokens, products,
//                            {x_in, write, mix, inverse_rms}, stream);
//   cuda::hyper_read_backward(shape, inputs, raw, inverse_rms, {dx_in, dwrite, dmix}, tokens,
//                             dstreams, dproducts, terms, partials, dbase, dscale, stream);
//
// Streams and what has their width are of the run's type; maps, parameters and their gradients have
// its accumulation type. A block of threads has one token; its Sinkhorn rounds run in one warp, a
// row of the matrix for each lane, and are played again in backward. The gradients of base and
// scale are sums over tokens: each token's terms first, then fixed groups of rows, then the groups
// in order.
#pragma once

#include "kernels/cpu/hyper_connection.h"
#include "kernels/cuda/cuda_types.h"

namespace longspan::cuda {

// Whether there are kernels for the shape; "" or why not.
const char* hyper_refusal(const HyperShape& shape);

template <typename T>
struct HyperReadInputs {
  const T* streams;
  const Accumulate<T>* base;
  const Accumulate<T>* scale;
};

template <typename T>
struct HyperReadOutputs {
  T* x_in;
  Accumulate<T>* write;
  Accumulate<T>* mix;
  Accumulate<T>* inverse_rms;
};

// `products` become raw.
template <typename T>
void hyper_read_forward(const HyperShape& shape, const HyperReadInputs<T>& inputs, int64_t tokens,
                        Accumulate<T>* products, const HyperReadOutputs<T>& outputs, Stream stream);

template <typename T>
struct HyperReadGradients {
  const T* x_in;
  const Accumulate<T>* write;
  const Accumulate<T>* mix;
};

// Work space of the backward: a row of terms for each token, and partial sums of them.
inline int64_t hyper_terms(const HyperShape& shape) {
  return shape.maps() + 3;
}
inline int64_t hyper_partial_rows(int64_t tokens) {
  return (tokens + kHyperBlockRows - 1) / kHyperBlockRows;
}

// `streams_gradient` is written without what goes through fn, `products_gradient` in the run's type
// for the caller's matrix products; `base_gradient` and `scale_gradient` are added to.
template <typename T>
void hyper_read_backward(const HyperShape& shape, const HyperReadInputs<T>& inputs,
                         const Accumulate<T>* raw, const Accumulate<T>* inverse_rms,
                         const HyperReadGradients<T>& gradients, int64_t tokens,
                         T* streams_gradient, T* products_gradient, Accumulate<T>* terms,
                         Accumulate<T>* partials, Accumulate<T>* base_gradient,
                         Accumulate<T>* scale_gradient, Stream stream);

template <typename T>
struct HyperWriteInputs {
  const T* streams;
  const T* y;
  const Accumulate<T>* write;
  const Accumulate<T>* mix;
};

template <typename T>
void hyper_write_forward(const HyperShape& shape, const HyperWriteInputs<T>& inputs, int64_t tokens,
                         T* streams_out, Stream stream);

template <typename T>
struct HyperWriteGradients {
  T* streams;
  T* y;
  Accumulate<T>* write;
  Accumulate<T>* mix;
};

template <typename T>
void hyper_write_backward(const HyperShape& shape, const HyperWriteInputs<T>& inputs,
                          const T* streams_out_gradient, int64_t tokens,
                          const HyperWriteGradients<T>& gradients, Stream stream);

}  // namespace longspan::cuda
