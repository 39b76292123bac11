#include <array>

#include "layers/ops.h"
#include "model/families.h"

namespace longspan {

std::vector<at::Tensor> attention_projections(const ParameterAccess& access,
                                              const LayerParameters& ids, const ModelSpec& spec,
                                              const at::Tensor& x_TC) {
  const std::array<ParameterId, 3> projections = {ids.q_proj, ids.k_proj, ids.v_proj};
  std::vector<at::Tensor> qkv =
      norm_linear(access, x_TC, ids.input_norm, spec.rms_norm_eps, projections);
  const int64_t tokens = x_TC.size(0);
  qkv[0] = qkv[0].view({tokens, spec.num_query_heads, spec.head_dim});
  qkv[1] = qkv[1].view({tokens, spec.num_kv_heads, spec.head_dim});
  qkv[2] = qkv[2].view({tokens, spec.num_kv_heads, spec.head_dim});
  return qkv;
}

at::Tensor dense_output(const ParameterAccess& access, const LayerParameters& ids,
                        const ModelSpec& spec, const at::Tensor& o_THK, const at::Tensor& x_TC) {
  const at::Tensor o = o_THK.view({x_TC.size(0), spec.query_width()});
  const at::Tensor h = linear(access, o, ids.o_proj, x_TC);
  const std::array<ParameterId, 2> projections = {ids.gate_proj, ids.up_proj};
  const std::vector<at::Tensor> gate_up =
      norm_linear(access, h, ids.post_attention_norm, spec.rms_norm_eps, projections);
  return swiglu_linear(access, gate_up[0], gate_up[1], ids.down_proj, h);
}

}  // namespace longspan
