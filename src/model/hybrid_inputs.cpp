// What the mixes of a hybrid's layers take: projections of the normed input.
#include <ATen/ops/mul.h>

#include <cmath>

#include "layers/index_ops.h"
#include "layers/kda_ops.h"
#include "layers/latent_keys.h"
#include "layers/latent_ops.h"
#include "layers/ops.h"
#include "layers/row_joins.h"
#include "model/hybrid.h"

namespace longspan {
namespace {

constexpr double kIndexNormEpsilon = 1e-6;

DecayGate decay_gate_of(const LinearAttentionSpec& spec) {
  if (spec.gate == DecayGateKind::kSoftplus) return {.kind = DecayGate::Kind::kSoftplus};
  return {.kind = DecayGate::Kind::kBounded, .bound = spec.gate_lower_bound};
}

}  // namespace

std::vector<at::Tensor> Hybrid::linear_inputs(const ParameterAccess& access, int64_t layer,
                                              const at::Tensor& x_TC) const {
  const LayerParameters& p = ids(layer);
  const LinearAttentionSpec& sizes = spec().linear_attention;
  const std::vector<int64_t> row = {x_TC.size(0), sizes.num_heads, sizes.head_dim};
  const at::Tensor qkv_T3W =
      stack_rows({project(access, x_TC, p.q_proj), project(access, x_TC, p.k_proj),
                  project(access, x_TC, p.v_proj)});
  const at::Tensor f = project(access, project(access, x_TC, p.decay_a_proj), p.decay_b_proj);
  const at::Tensor gate = project(access, project(access, x_TC, p.gate_a_proj), p.gate_b_proj);
  return {qkv_T3W.view({x_TC.size(0), 3, sizes.num_heads, sizes.head_dim}),
          decay_gate(access, decay_gate_of(sizes), f.view(row), {p.decay_rate, p.dt_bias}),
          logistic(project(access, x_TC, p.beta_proj)), gate.view(row)};
}

at::Tensor Hybrid::query_latent(const ParameterAccess& access, int64_t layer,
                                const at::Tensor& x_TC) const {
  const LayerParameters& p = ids(layer);
  if (p.q_a_proj < 0) return x_TC;
  return norm(access, project(access, x_TC, p.q_a_proj), p.q_a_norm,
              spec().latent_attention.norm_eps);
}

at::Tensor Hybrid::queries(const ParameterAccess& access, int64_t layer,
                           const at::Tensor& latent) const {
  const LayerParameters& p = ids(layer);
  const LatentAttentionSpec& sizes = spec().latent_attention;
  return project(access, latent, p.q_a_proj < 0 ? p.q_proj : p.q_b_proj)
      .view({latent.size(0), sizes.num_heads, sizes.qk_dim()});
}

std::vector<at::Tensor> Hybrid::sparse_inputs(const ParameterAccess& access, int64_t layer,
                                              const at::Tensor& x_TC,
                                              const TokenPlaces& places) const {
  const LayerParameters& p = ids(layer);
  const IndexSpec& index = spec().index;
  const at::Tensor query_latent_TR = query_latent(access, layer, x_TC);
  const at::Tensor q_THR =
      absorb_queries(access, queries(access, layer, query_latent_TR), p.kv_b_proj);
  const at::Tensor latents_TR = norm(access, project(access, x_TC, p.kv_a_proj), p.kv_a_norm,
                                     spec().latent_attention.norm_eps);

  const at::Tensor index_queries = untrained_project(access, query_latent_TR, p.index_q_proj)
                                       .view({x_TC.size(0), index.num_heads, index.head_dim});
  const double head_scale = 1 / std::sqrt(static_cast<double>(index.num_heads));
  const at::Tensor head_weights =
      at::mul(untrained_project(access, x_TC, p.index_weights), head_scale);
  const at::Tensor index_keys =
      untrained_layer_norm(access, untrained_project(access, x_TC, p.index_k_proj), p.index_k_norm,
                           p.index_k_norm_bias, kIndexNormEpsilon);
  const at::Tensor gates = add_slots(access, untrained_project(access, x_TC, p.index_pool_gate),
                                     p.index_pool_bias, places.positions);
  return {q_THR, latents_TR, index_queries, head_weights, index_keys, gates};
}

std::vector<at::Tensor> Hybrid::attention_inputs(const ParameterAccess& access, int64_t layer,
                                                 const at::Tensor& x_TC) const {
  const LayerParameters& p = ids(layer);
  const LatentAttentionSpec& sizes = spec().latent_attention;
  const auto [keys, values] =
      latent_keys(access, project(access, x_TC, p.kv_a_proj), {p.kv_a_norm, p.kv_b_proj},
                  {.heads = sizes.num_heads,
                   .latent_width = sizes.kv_lora_rank,
                   .own_width = sizes.nope_dim,
                   .shared_width = sizes.rope_dim,
                   .value_width = sizes.v_dim,
                   .epsilon = sizes.norm_eps});
  return {queries(access, layer, query_latent(access, layer, x_TC)), keys, values};
}

}  // namespace longspan
