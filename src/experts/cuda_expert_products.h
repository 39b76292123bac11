// Private to experts/: expert_products.h on a GPU. In builds without CUDA nothing here is called,
// nor defined.
//
// All pairs of a batch are at work at once, sorted by expert: one grouped product for each matrix
// where libtorch has one (bfloat16 with widths of a multiple of 8), else a product for each expert.
// Weight gradients are a product for each expert, summed in the accumulators' type by the product
// itself. A row's sum over its experts is formed in the accumulation type and rounded once.
// Shapes are checked by the callers. The host counts pairs; nothing waits.
#pragma once

#include "experts/expert_products.h"

namespace longspan {

at::Tensor cuda_expert_products(const ExpertBatch& batch, const ExpertWeights& weights,
                                double limit);

ExpertBatchGradient cuda_expert_products_backward(const ExpertBatch& batch, const at::Tensor& dy_RD,
                                                  const ExpertWeights& weights, double limit,
                                                  const ExpertWeightGradients& gradients);

}  // namespace longspan
