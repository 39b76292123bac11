#include "layers/latent_keys.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/mm.h>
#include <ATen/ops/zeros.h>
#include <c10/core/GradMode.h>

#include "base/check.h"
#include "layers/layer_node.h"
#include "layers/row_ops.h"
#include "layers/weight_gradient.h"

namespace longspan {
namespace {

using c10::AutoGradMode;

Tensors expand(const at::Tensor& normed_TR, const at::Tensor& shared_TP, const at::Tensor& kv_b,
               const LatentKeySizes& sizes) {
  const int64_t tokens = normed_TR.size(0);
  const int64_t width = sizes.key_width();
  const at::Tensor rows =
      at::mm(normed_TR, kv_b.t()).view({tokens, sizes.heads, sizes.own_width + sizes.value_width});
  const at::Tensor keys = at::empty({tokens, sizes.heads, width}, normed_TR.options());
  const at::Tensor values = at::zeros({tokens, sizes.heads, width}, normed_TR.options());
  keys.narrow(2, 0, sizes.own_width).copy_(rows.narrow(2, 0, sizes.own_width));
  keys.narrow(2, sizes.own_width, sizes.shared_width).copy_(shared_TP.unsqueeze(1));
  values.narrow(2, 0, sizes.value_width).copy_(rows.narrow(2, sizes.own_width, sizes.value_width));
  return {keys, values};
}

// The gradients of keys and values as one of the rows that kv_b gives [T, H (K' + V)].
at::Tensor joined(const Tensors& dy, const LatentKeySizes& sizes) {
  const int64_t tokens = dy[0].size(0);
  const int64_t width = sizes.own_width + sizes.value_width;
  const at::Tensor rows = at::empty({tokens, sizes.heads, width}, dy[0].options());
  rows.narrow(2, 0, sizes.own_width).copy_(dy[0].narrow(2, 0, sizes.own_width));
  rows.narrow(2, sizes.own_width, sizes.value_width).copy_(dy[1].narrow(2, 0, sizes.value_width));
  return rows.view({tokens, sizes.heads * width});
}

}  // namespace

std::pair<at::Tensor, at::Tensor> latent_keys(const ParameterAccess& access,
                                              const at::Tensor& kv_TL,
                                              const LatentKeyParameters& parameters,
                                              const LatentKeySizes& sizes) {
  LONGSPAN_CHECK(sizes.value_width <= sizes.key_width(), "values of ", sizes.value_width,
                 " are wider than keys of ", sizes.key_width());
  const int64_t latent = sizes.latent_width;
  Tensors outputs;
  at::Tensor inverse_rms;
  {
    const AutoGradMode off(false);
    const NormOutput normed = norm_forward(kv_TL.narrow(1, 0, latent).contiguous(),
                                           access.weights->weight(parameters.norm), sizes.epsilon);
    inverse_rms = normed.inverse_rms;
    outputs = expand(normed.y, kv_TL.narrow(1, latent, sizes.shared_width),
                     access.weights->weight(parameters.kv_b), sizes);
  }
  connect(outputs, {kv_TL}, {kv_TL, inverse_rms},
          [access, parameters, sizes, latent](const Tensors& dy, const Tensors& saved) {
            const at::Tensor drows = joined(dy, sizes);
            const at::Tensor dnormed = at::mm(drows, access.weights->weight(parameters.kv_b));
            const at::Tensor latents = saved[0].narrow(1, 0, latent).contiguous();
            at::Tensor normed;
            norm_backward(latents, access.weights->weight(parameters.norm), saved[1], dnormed,
                          access.gradients->gradient(parameters.norm), dnormed, &normed);
            add_weight_gradient(access, parameters.kv_b, drows, normed);
            const at::Tensor dkv = at::empty_like(saved[0]);
            dkv.narrow(1, 0, latent).copy_(dnormed);
            dkv.narrow(1, latent, sizes.shared_width)
                .copy_(dy[0].narrow(2, sizes.own_width, sizes.shared_width).sum(1));
            return Tensors{dkv};
          });
  return {outputs[0], outputs[1]};
}

}  // namespace longspan
