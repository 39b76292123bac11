#include "model/hybrid.h"

#include <ATen/ops/mul.h>

#include "base/check.h"
#include "layers/kda_ops.h"
#include "layers/latent_ops.h"
#include "layers/ops.h"
#include "layers/router.h"
#include "layers/row_joins.h"
#include "model/families.h"

namespace longspan {

Hybrid::Hybrid(const ModelSpec& spec, int64_t expert_group, const at::TensorOptions& tensors,
               const HeadLossOptions& options)
    : TransformerModel(spec, expert_group, tensors, options) {}

// ---- streams

std::vector<int64_t> Hybrid::hidden_row() const {
  if (!has_streams()) return {hidden_size()};
  return {spec().hyper.streams, hidden_size()};
}

at::Tensor Hybrid::to_streams(const at::Tensor& x_TC) const {
  if (!has_streams()) return x_TC;
  return x_TC.unsqueeze(1).repeat({1, spec().hyper.streams, 1});
}

at::Tensor Hybrid::from_streams(const at::Tensor& x) const {
  return has_streams() ? streams_mean(x) : x;
}

at::Tensor Hybrid::sum_of_streams(const at::Tensor& dx) const {
  return has_streams() ? dx.sum(1) : dx;
}

at::Tensor Hybrid::share_of_streams(const at::Tensor& dx_TC) const {
  if (!has_streams()) return dx_TC;
  return to_streams(at::mul(dx_TC, 1.0 / static_cast<double>(spec().hyper.streams)));
}

Hybrid::Reading Hybrid::read(const ParameterAccess& access, int64_t layer, Site site,
                             const at::Tensor& x) const {
  if (!has_streams()) return {x, {}};
  const LayerParameters& p = ids(layer);
  const HyperParameters parameters =
      site == Site::kAttention
          ? HyperParameters{p.hyper_attention_fn, p.hyper_attention_base, p.hyper_attention_scale}
          : HyperParameters{p.hyper_ffn_fn, p.hyper_ffn_base, p.hyper_ffn_scale};
  const HyperRead reading = hyper_read(access, x, parameters,
                                       {.norm_epsilon = spec().rms_norm_eps,
                                        .epsilon = spec().hyper.eps,
                                        .sinkhorn_rounds = spec().hyper.sinkhorn_iterations});
  return {reading.x_in, {reading.write, reading.mix}};
}

at::Tensor Hybrid::write(const at::Tensor& x, const at::Tensor& y_TC,
                         std::span<const at::Tensor> maps) const {
  if (!has_streams()) return sum_of(x, y_TC);
  return hyper_write(x, y_TC, maps[0], maps[1]);
}

at::Tensor Hybrid::norm(const ParameterAccess& access, const at::Tensor& x_TC, int64_t weight,
                        double epsilon) const {
  const int64_t width = x_TC.size(1);
  return head_norm(access, x_TC.view({-1, 1, width}), weight, epsilon).view({-1, width});
}

// ---- the part before the mix

std::vector<at::Tensor> Hybrid::pre(const ParameterAccess& access, int64_t layer,
                                    const at::Tensor& x, const TokenPlaces& places) const {
  Reading reading = read(access, layer, Site::kAttention, x);
  const at::Tensor x_TC = norm(access, reading.x_TC, ids(layer).input_norm, spec().rms_norm_eps);
  std::vector<at::Tensor> outputs;
  switch (mix_kind(layer)) {
    case MixKind::kLinearAttention:
      outputs = linear_inputs(access, layer, x_TC);
      break;
    case MixKind::kSparseAttention:
      outputs = sparse_inputs(access, layer, x_TC, places);
      break;
    case MixKind::kAttention:
      outputs = attention_inputs(access, layer, x_TC);
      break;
  }
  outputs.insert(outputs.end(), reading.maps.begin(), reading.maps.end());
  return outputs;
}

// ---- the part after it

at::Tensor Hybrid::mix_output(const ParameterAccess& access, int64_t layer,
                              const PostInputs& inputs) const {
  const LayerParameters& p = ids(layer);
  at::Tensor o = inputs.mixed;
  switch (mix_kind(layer)) {
    case MixKind::kLinearAttention:
      o = gated_norm(access, o, inputs.side[0], p.o_norm, spec().rms_norm_eps);
      break;
    case MixKind::kSparseAttention:
      o = expand_values(access, o, p.kv_b_proj, spec().latent_attention.v_dim);
      break;
    case MixKind::kAttention:
      o = narrow_heads(o, spec().latent_attention.v_dim);
      break;
  }
  return project(access, o.view({o.size(0), -1}), p.o_proj);
}

at::Tensor Hybrid::after_mix(const ParameterAccess& access, int64_t layer,
                             const PostInputs& inputs) const {
  const size_t gates = mix_kind(layer) == MixKind::kLinearAttention ? 1 : 0;
  return write(inputs.x, mix_output(access, layer, inputs), inputs.side.subspan(gates));
}

at::Tensor Hybrid::post(const ParameterAccess& access, int64_t layer,
                        const PostInputs& inputs) const {
  const LayerParameters& p = ids(layer);
  const at::Tensor x = after_mix(access, layer, inputs);
  const Reading reading = read(access, layer, Site::kFeedForward, x);
  const at::Tensor x_TC = norm(access, reading.x_TC, p.post_attention_norm, spec().rms_norm_eps);
  const at::Tensor y_TC =
      swiglu_linear(access, project(access, x_TC, p.gate_proj), project(access, x_TC, p.up_proj),
                    p.down_proj, at::Tensor(), swiglu_limit());
  return write(x, y_TC, reading.maps);
}

// After the tokens and the weights: the layer's input after attention, the maps.
std::vector<at::Tensor> Hybrid::post_to_experts(const ParameterAccess& access, int64_t layer,
                                                const PostInputs& inputs,
                                                std::vector<at::Tensor>& choices) const {
  const LayerParameters& p = ids(layer);
  const at::Tensor x = after_mix(access, layer, inputs);
  const Reading reading = read(access, layer, Site::kFeedForward, x);
  const at::Tensor x_TC = norm(access, reading.x_TC, p.post_attention_norm, spec().rms_norm_eps);
  const Routing routing = route(
      access, x_TC, {p.router, p.router_bias},
      {.top_k = spec().experts.top_k, .normalized = true, .scale = spec().experts.route_scale},
      choices.empty() ? at::Tensor() : choices[0]);
  if (choices.empty()) choices = {routing.ids_TK};
  std::vector<at::Tensor> outputs = {x_TC, routing.weights_TK, x};
  outputs.insert(outputs.end(), reading.maps.begin(), reading.maps.end());
  return outputs;
}

at::Tensor Hybrid::combine(const ParameterAccess& access, int64_t layer,
                           const at::Tensor& expert_output_TC,
                           std::span<const at::Tensor> post_outputs) const {
  const LayerParameters& p = ids(layer);
  const at::Tensor& x_TC = post_outputs[0];
  at::Tensor y_TC = expert_output_TC;
  if (spec().experts.num_shared > 0) {
    y_TC = swiglu_linear(access, project(access, x_TC, p.shared_gate),
                         project(access, x_TC, p.shared_up), p.shared_down, expert_output_TC,
                         swiglu_limit());
  }
  return write(post_outputs[1], y_TC, post_outputs.subspan(2));
}

std::unique_ptr<TransformerModel> make_hybrid(const ModelSpec& spec, int64_t expert_group,
                                              const at::TensorOptions& tensors,
                                              const HeadLossOptions& options) {
  return std::make_unique<Hybrid>(spec, expert_group, tensors, options);
}

}  // namespace longspan
