// The part of a layer in which tokens see earlier tokens, where it is not softmax core attention:
// linear attention with a carried state, sparse attention over selected keys.
//
// Why an interface: the executor runs every such part alike. Before it stands the layer's pre
// segment, after it the post segment, both on own tokens only; the mix exchanges what it needs with
// the other ranks, by itself, and leaves behind the *context* that later chunks look back at.
//
//   MixOutput out = mix.forward(call, inputs, earlier, choices);     // on all ranks, chunk by
//   chunk auto gradients = mix.zero_gradient(call, lines);                 // of a chunk's context
//   auto d_inputs = mix.backward(call, {...});                       // chunks in reverse
//
// Chunks run forward in causal order: `earlier` are the contexts of chunks [0, chunk), whole for
// the band at work and else cut down by carry(). Backward of a chunk adds into the gradients of its
// own context and of all earlier ones; by the time it runs, all later chunks have added theirs.
// A forward that is repeated for the sake of backward gets the choices of the first one and must
// repeat them.
//
// Contract: forward and backward are collective: all ranks of the communicator call them for the
// same layer and chunk in the same order, ranks without tokens with tensors of no rows. They use
// tags [call.tag, call.tag + kTagsPerMix). A mix is immutable: ranks of one process may share it.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "attention/row_store.h"
#include "comm/communicator.h"
#include "layers/parameter_access.h"
#include "layout/token_layout.h"

namespace longspan {

inline constexpr int64_t kTagsPerMix = 1024;

struct MixCall {
  ParameterAccess
      access;  // weights of the layer's unit are gathered; in backward its gradients open
  int64_t layer = 0;
  const TokenLayout* layout = nullptr;
  int chunk = 0;
  Communicator* comm = nullptr;
  int64_t tag = 0;
  std::string op;  // for errors and stall reports: "linear attention forward, layer 3, chunk 1"

  Range piece() const { return layout->piece(chunk, comm->rank()); }
};

// What a chunk leaves on one rank for later chunks: rows of the line (latents, the inputs of a
// convolution), and tensors that belong to the chunk as a whole (a rank's share of the state).
struct MixContext {
  RowStore rows;
  RowStore index_rows;  // of an index over them, on an axis of its own (pools of sparse attention)
  std::vector<at::Tensor> tensors;
};

// Sums, in the accumulation type, of the gradients of a MixContext.
struct MixContextGradient {
  std::unique_ptr<RowAccumulator> rows;
  std::vector<at::Tensor> tensors;
};

struct MixOutput {
  std::vector<at::Tensor> tensors;  // [0] goes to the post segment; others are for backward
  MixContext context;
};

struct MixBackwardInputs {
  std::vector<at::Tensor> inputs;              // of the forward
  std::vector<at::Tensor> output;              // MixOutput::tensors
  at::Tensor output_gradient;                  // of output[0]
  std::vector<const MixContext*> contexts;     // of chunks [0, chunk]
  std::vector<MixContextGradient*> gradients;  // of chunks [0, chunk]; added to
  std::span<const at::Tensor> choices;
};

class SequenceMix {
 public:
  virtual ~SequenceMix() = default;

  virtual std::string name() const = 0;  // "linear attention"
  // Shape of one token's row in each input and in output 0, for ranks without tokens.
  virtual std::vector<std::vector<int64_t>> input_rows() const = 0;
  virtual std::vector<int64_t> output_row() const = 0;

  // Choices that came from outside, ids [tokens of the piece, ...], as forward takes them. A mix
  // that chooses nothing knows none.
  virtual std::vector<at::Tensor> given_choices(const at::Tensor&) const { return {}; }

  // `inputs`: [tokens of the piece, input_rows()[i]...]. `choices`: empty on the first forward,
  // which fills it (with no tensors if the mix chooses nothing); filled on a repeated one.
  virtual MixOutput forward(const MixCall& call, const std::vector<at::Tensor>& inputs,
                            const std::vector<const MixContext*>& earlier,
                            std::vector<at::Tensor>& choices) const = 0;

  // The part of a chunk's context that chunks from `first_later_chunk` on need: copies, so that the
  // whole may be freed.
  virtual MixContext carry(const MixCall& call, const MixContext& whole,
                           int first_later_chunk) const = 0;

  // Zeros for the gradient of a whole context. What later bands added to the gradient of a carried
  // context comes in `carried` (null: nothing yet) and is taken over.
  virtual MixContextGradient zero_gradient(const MixCall& call, const MixContext& context,
                                           MixContextGradient* carried) const = 0;

  // The gradients of the inputs.
  virtual std::vector<at::Tensor> backward(const MixCall& call,
                                           const MixBackwardInputs& given) const = 0;
};

}  // namespace longspan
