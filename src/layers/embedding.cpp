#include "kernels/cpu/embedding.h"

#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>

#include "device/device.h"
#include "layers/cuda_ops.h"
#include "layers/embedding.h"
#include "layers/parallel_ranges.h"
#include "layers/real_types.h"

namespace longspan {
namespace {

constexpr int64_t kGrainRows = 64;
constexpr int64_t kGrainColumns = 64;

void check_tokens(std::span<const int32_t> tokens, const at::Tensor& table) {
  LONGSPAN_CHECK(table.dim() == 2 && table.is_contiguous(), "embedding ", table.sizes());
  LONGSPAN_CHECK(token_ids_within(tokens.data(), std::ssize(tokens), table.size(0)),
                 "a token id is outside the ", table.size(0), " rows of the embedding");
}

}  // namespace

at::Tensor embed(const ParameterAccess& access, ParameterId table,
                 std::span<const int32_t> tokens) {
  const at::Tensor& weight = access.weights->weight(table);
  check_tokens(tokens, weight);
  const int64_t width = weight.size(1);
  at::Tensor x = at::empty({std::ssize(tokens), width}, weight.options());
  if constexpr (kBuiltWithCuda) {
    if (weight.is_cuda()) {
      cuda_embed(weight, tokens, x);
      return x;
    }
  }
  for_real_type(weight.scalar_type(), [&]<typename Real>() {
    parallel_ranges({0, std::ssize(tokens)}, kGrainRows, [&](Range part) {
      embedding_gather(weight.const_data_ptr<Real>(), tokens.data(), part, width,
                       x.mutable_data_ptr<Real>());
    });
  });
  return x;
}

void embed_backward(const ParameterAccess& access, ParameterId table,
                    std::span<const int32_t> tokens, const at::Tensor& dx_TC) {
  const at::Tensor& gradient = access.gradients->gradient(table);
  check_tokens(tokens, gradient);
  LONGSPAN_CHECK(dx_TC.dim() == 2 && dx_TC.is_contiguous() && dx_TC.size(0) == std::ssize(tokens) &&
                     dx_TC.size(1) == gradient.size(1) &&
                     accumulate_type(dx_TC.scalar_type()) == gradient.scalar_type(),
                 "dx ", dx_TC.toString(), " ", dx_TC.sizes(), " for ", tokens.size(),
                 " tokens, gradient ", gradient.toString(), " ", gradient.sizes());
  if constexpr (kBuiltWithCuda) {
    if (dx_TC.is_cuda()) return cuda_embed_backward(dx_TC, tokens, gradient);
  }
  for_real_type(dx_TC.scalar_type(), [&]<typename Real>() {
    parallel_ranges({0, gradient.size(1)}, kGrainColumns, [&](Range columns) {
      embedding_scatter_add(dx_TC.const_data_ptr<Real>(), tokens.data(), std::ssize(tokens),
                            columns, gradient.size(1), gradient.mutable_data_ptr<Real>());
    });
  });
}

}  // namespace longspan
