// Linear attention (KDA) on the tokens of one piece: what a rank computes by itself.
//
// A piece is cut at document starts into stretches; only the first may see a state from before the
// piece, only the last may leave one. The state of the others starts at zero and is dropped.
//
//   const auto piece = make_kda_piece({shape, stretches, {qkv_T3HK, g_THK, beta_TH}, before_N3HK,
//                                      weight_3HNK});
//   at::Tensor map = piece->map(/*with_matrix=*/true);       // for the exchange of states
//   auto [o_THV, state_after] = piece->forward(state_before, /*wants_state=*/false);
//   KdaPiece::Gradients gradients = piece->backward(d_o_THV, state_before, d_state_after);
//
// Legend: T tokens of the piece, H heads, K key width, V value width (= K), N taps of the
// convolution. The decay g, states, maps, and gradients of g, of rows before the piece and of the
// weight have the accumulation type; all else has the run's. A piece holds convolved and normalised
// q, k, v, 3 H T K numbers, on a GPU also what its chunks give before any state is known; all else
// that grows with the tokens is gone when a call returns.
// Two implementations, by the device of the tensors: kda_piece_cpu.h, kda_piece_cuda.h.
// Thread contract: one rank, on its thread and its helpers.
#pragma once

#include <ATen/core/Tensor.h>

#include <memory>
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
  struct Setup {
    LinearAttentionShape shape;
    std::vector<Range> stretches;
    KdaInputs inputs;
    // [up to taps - 1, 3, H, K]: the rows of the first stretch's document right before the piece.
    at::Tensor before_N3HK;
    at::Tensor weight_3HNK;  // [3, H, taps, K]

    int64_t tokens() const { return inputs.beta_TH.size(0); }
    at::TensorOptions options() const { return inputs.beta_TH.options(); }
  };

  virtual ~KdaPiece() = default;

  // The last stretch as a map of states: N | M, or N alone.
  virtual at::Tensor map(bool with_matrix) const = 0;
  // The first stretch as a map of gradients of states: D | M^T, or D alone.
  virtual at::Tensor gradient_map(const at::Tensor& d_o_THV, bool with_matrix) const = 0;

  // States [H, K, V]; an undefined one is zero, and not asked for.
  virtual std::pair<at::Tensor, at::Tensor> forward(const at::Tensor& state_before,
                                                    bool wants_state) const = 0;

  struct Gradients {
    KdaInputs inputs;
    at::Tensor before_N3HK;
    at::Tensor weight_3HNK;
    at::Tensor state_before;  // [H, K, V], undefined if that was
  };
  virtual Gradients backward(const at::Tensor& d_o_THV, const at::Tensor& state_before,
                             const at::Tensor& d_state_after) const = 0;
};

// UserError if the device has no kernels for the shape.
std::unique_ptr<KdaPiece> make_kda_piece(KdaPiece::Setup setup);

// Whether pieces run on the kernels made for speed: on a GPU in bfloat16, on tensor cores.
// UserError if the device has no kernels for the shape.
bool kda_is_fast(const LinearAttentionShape& shape, at::ScalarType type, at::Device device);

// The type of states, of a run with activations like this one.
at::TensorOptions state_options(const at::Tensor& like);

}  // namespace longspan
