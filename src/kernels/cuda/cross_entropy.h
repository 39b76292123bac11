// Softmax cross-entropy on rows of logits, on a GPU: twin of kernels/cpu/cross_entropy.h.
//
//   cuda::cross_entropy_losses(logits, targets, rows, vocabulary, losses, stream);
//   cuda::cross_entropy_gradient(logits, targets, weights, scale, rows, vocabulary, losses,
//   stream); cuda::add_weighted_losses(losses, weights, rows, sum, stream);
//
// Exponentials and sums in the accumulation type, losses in double. A block runs a row: one pass
// for its maximum and its sum of exponentials, one that turns logits into their gradient.
#pragma once

#include "kernels/cuda/cuda_types.h"

namespace longspan::cuda {

template <typename T>
void cross_entropy_losses(const T* logits, const int32_t* targets, int64_t rows, int64_t vocabulary,
                          double* losses, Stream stream);

template <typename T>
void cross_entropy_gradient(T* logits, const int32_t* targets, const float* weights, double scale,
                            int64_t rows, int64_t vocabulary, double* losses, Stream stream);

// *sum += the weighted losses. Rows of weight 0 do not count, whatever their loss is.
void add_weighted_losses(const double* losses, const float* weights, int64_t rows, double* sum,
                         Stream stream);

}  // namespace longspan::cuda
