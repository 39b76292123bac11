// Sparse attention with a pooled index (DSA) as a layer's mixing part, over chunks and ranks.
//
// Every query ranks the pools of its document by an index and attends to the best of them and to
// its tail (kernels/sparse_attention_shape.h). Forward: pool keys of the own piece, with up to
// pool - 1 rows fetched from wherever they live; scoring as tasks of a plan, balanced over all
// ranks (index_pass.h); latents gathered or fetched (latent_exchange.h); attention at home
// (selected_attention.h). Backward: latents again, gradients given back to their owners.
//
//   SparseAttentionMix mix({.attention = attention, .index = index,
//                           .plans = planned_index_scoring(index, {})});
//
// Inputs from pre, by token: absorbed queries [H, R], latents [R], index queries [J, D], head
// weights [J] (with their constant factor), index keys [D] (normed), gates [D] (with the slot's
// row added: layers/index_ops.h). The index is not trained: the last four have no gradient
// (backward gives undefined tensors for them). Output: {o [H, R], LSE [H]}.
// Choices: the selected pools [T, B] (int32), and how latents travelled [1] (int32). A forward that
// is given choices repeats them; it builds no index, so its context has none.
// Context: rows {latents}, index rows {pool keys} by place on the pool axis, tensors {keys, gates}
// of the pool that the chunk leaves unfinished, as far as its rows are in the own piece.
// Sums of gradients have the accumulation type, and so has the LSE.
// Contract and threads: as SequenceMix. CPU (float32, float64) or GPU (bfloat16 as well).
#pragma once

#include "kernels/sparse_attention_shape.h"
#include "mix/sequence_mix.h"
#include "sparse_attention/index_plans.h"
#include "sparse_attention/latent_exchange.h"
#include "sparse_attention/pool_axis.h"

namespace longspan {

struct SparseAttentionOptions {
  SparseAttentionShape attention;
  IndexShape index;
  IndexPlanSource plans;
  LatentTravel latents = LatentTravel::kAuto;
  int64_t index_work_bytes = int64_t{256} << 20;  // of scoring, all threads of a rank together
};

class SparseAttentionMix final : public SequenceMix {
 public:
  explicit SparseAttentionMix(SparseAttentionOptions options);

  std::string name() const override { return "sparse attention"; }
  std::vector<std::vector<int64_t>> input_rows() const override;
  std::vector<int64_t> output_row() const override;

  // Pools [tokens, B], int32, ascending, -1 behind the last; latents are gathered.
  std::vector<at::Tensor> given_choices(const at::Tensor& pools_TB) const override;

  MixOutput forward(const MixCall& call, const std::vector<at::Tensor>& inputs,
                    const std::vector<const MixContext*>& earlier,
                    std::vector<at::Tensor>& choices) const override;
  MixContext carry(const MixCall& call, const MixContext& whole,
                   int first_later_chunk) const override;
  MixContextGradient zero_gradient(const MixCall& call, const MixContext& context,
                                   MixContextGradient* carried) const override;
  std::vector<at::Tensor> backward(const MixCall& call,
                                   const MixBackwardInputs& given) const override;

 private:
  struct Inputs;

  bool must_choose(const TokenLayout& layout, const Range& line) const;
  int64_t list_width(const TokenLayout& layout, int chunk) const;
  void add_index(const MixCall& call, const PoolAxis& axis, const Inputs& inputs,
                 const std::vector<const MixContext*>& earlier, MixContext* context) const;
  at::Tensor select(const MixCall& call, const PoolAxis& axis, const Inputs& inputs,
                    const std::vector<const MixContext*>& earlier, const MixContext& own) const;
  LatentExchange latent_exchange(const MixCall& call, const PoolAxis& axis,
                                 const at::TensorOptions& options) const;

  const SparseAttentionOptions options_;
};

}  // namespace longspan
