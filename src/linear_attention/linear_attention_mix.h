// Linear attention (KDA) as the mixing part of a layer, over chunks of the line and ranks.
//
// Inputs per token: q, k, v before the short convolution [3, H, K], the logarithm of the decay
// [H, K], beta [H] (layers/kda_ops.h). Output: [H, K], for the gated norm. What a token needs of
// earlier ones is two things, wherever they live:
// - the rows before its piece's first token that its convolution looks at (taps - 1 of them),
//   fetched line by line: pieces may be shorter than that, or empty;
// - the state of its document. Ranks exchange maps of states (state_chain.h); from chunk to chunk
//   each rank carries the states of its share of the heads.
//
//   LinearAttentionMix mix(shape, {{3, {q_conv, k_conv, v_conv}}});       // by layer
//   MixOutput out = mix.forward(call, {qkv, g, beta}, earlier, choices);
//
// Context of a chunk: `rows` are the rows of q, k, v at its end that a later convolution may want,
// `tensors` the share of the state, if a document goes on after the chunk. Output tensors beside
// the output, for backward: the incoming state [1 or 0, H, K, K], the rows before the piece.
// Types: of a bfloat16 run on a GPU, decays, states and what stands in a MixContextGradient are
// float32.
// Thread contract: as mix/sequence_mix.h.
#pragma once

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "kernels/linear_attention_shape.h"
#include "mix/sequence_mix.h"

namespace longspan {

class KdaPiece;
class LineExchange;

// Weights of the short convolutions, [H K, 1, taps] each.
struct ConvolutionParameters {
  ParameterId q = -1;
  ParameterId k = -1;
  ParameterId v = -1;
};

class LinearAttentionMix final : public SequenceMix {
 public:
  // InternalError unless key and value width are alike.
  LinearAttentionMix(const LinearAttentionShape& shape,
                     std::map<int64_t, ConvolutionParameters> by_layer);

  std::string name() const override { return "linear attention"; }
  std::vector<std::vector<int64_t>> input_rows() const override;
  std::vector<int64_t> output_row() const override;

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
  std::vector<int64_t> qkv_row() const { return {3, shape_.heads, shape_.key_width}; }
  // The rows that a convolution at this place of the line looks back at: of one document.
  Range taps_before(const TokenLayout& layout, int64_t line_position) const;
  // The rows of a piece that later chunks may look back at.
  Range last_rows(const MixCall& call) const;
  LineExchange tap_exchange(const MixCall& call) const;
  std::unique_ptr<KdaPiece> make_piece(const MixCall& call, const std::vector<at::Tensor>& inputs,
                                       const at::Tensor& before) const;
  at::Tensor convolution_weight(const MixCall& call, const at::Tensor& qkv) const;
  void add_convolution_gradient(const MixCall& call, const at::Tensor& gradient) const;
  void give_taps_back(const MixCall& call, const MixBackwardInputs& given,
                      const at::Tensor& d_before, const at::Tensor& d_qkv) const;

  LinearAttentionShape shape_;
  std::map<int64_t, ConvolutionParameters> by_layer_;
};

}  // namespace longspan
