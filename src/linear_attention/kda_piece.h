// Linear attention (KDA) on the tokens of one piece: what a rank computes by itself.
//
// A piece is cut at document starts into stretches; only the first may see a state from before the
// piece, only the last may leave one. The state of the others starts at zero and is dropped.
//
//   KdaPiece piece(shape, stretches, {qkv_T3HK, g_THK, beta_TH}, before_N3HK, weight_3HNK);
//   at::Tensor map = piece.map(/*with_matrix=*/true);        // for the exchange of states
//   auto [o_THV, state_after] = piece.forward(state_before, /*wants_state=*/false);
//   KdaPiece::Gradients gradients = piece.backward(d_o_THV, state_before, d_state_after);
//
// Legend: T tokens of the piece, H heads, K key width, V value width (= K), N taps of the
// convolution. It holds convolved and normalised q, k, v, 3 H T K numbers; all else that grows with
// the tokens is gone when a call returns.
// Thread contract: one rank, on its thread and its helpers.
#pragma once

#include <ATen/core/Tensor.h>

#include <utility>
#include <vector>

#include "base/range.h"
#include "kernels/linear_attention_shape.h"

namespace longspan {

struct KdaInputs {
  at::Tensor qkv_T3HK;  // before the convolution
  at::Tensor g_THK;     // logarithm of the decay
  at::Tensor beta_TH;
};

class KdaPiece {
 public:
  // `before` [up to taps - 1, 3, H, K]: the rows of the first stretch's document right before the
  // piece. `weight` [3, H, taps, K].
  KdaPiece(const LinearAttentionShape& shape, std::vector<Range> stretches, const KdaInputs& inputs,
           at::Tensor before_N3HK, at::Tensor weight_3HNK);

  // The last stretch as a map of states: N | M, or N alone.
  at::Tensor map(bool with_matrix) const;
  // The first stretch as a map of gradients of states: D | M^T, or D alone.
  at::Tensor gradient_map(const at::Tensor& d_o_THV, bool with_matrix) const;

  // States [H, K, V]; an undefined one is zero, and not asked for.
  std::pair<at::Tensor, at::Tensor> forward(const at::Tensor& state_before, bool wants_state) const;

  struct Gradients {
    KdaInputs inputs;
    at::Tensor before_N3HK;
    at::Tensor weight_3HNK;
    at::Tensor state_before;  // [H, K, V], undefined if that was
  };
  Gradients backward(const at::Tensor& d_o_THV, const at::Tensor& state_before,
                     const at::Tensor& d_state_after) const;

 private:
  int64_t tokens() const { return inputs_.g_THK.size(0); }
  at::TensorOptions options() const { return inputs_.g_THK.options(); }
  template <typename Real>
  void fill_heads();
  // Calls work(head, stretch, its view of it, scratch) for all heads of the stretches [begin, end).
  template <typename Real, typename Work>
  void for_heads(Range stretches, const Work& work) const;
  template <typename Real>
  void convolve_backward(at::Tensor& d_qkv_3HTK, Gradients& gradients) const;

  LinearAttentionShape shape_;
  std::vector<Range> stretches_;
  KdaInputs inputs_;
  at::Tensor before_N3HK_;
  at::Tensor weight_3HNK_;
  at::Tensor qkv_3HTK_;          // convolved; q and k normalised, q scaled
  at::Tensor inverse_norm_2HT_;  // of q and k
};

}  // namespace longspan
