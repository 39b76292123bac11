#include "linear_attention/linear_attention_mix.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/zeros.h>
#include <ATen/ops/zeros_like.h>

#include "base/check.h"
#include "linear_attention/kda_piece.h"
#include "linear_attention/state_chain.h"
#include "mix/line_exchange.h"

namespace longspan {
namespace {

using Tensors = std::vector<at::Tensor>;

// Tags of one call: rows of the convolution, then the chain of states.
constexpr int64_t kChainTag = 1;

at::Tensor empty_rows(int64_t rows, const std::vector<int64_t>& row, const at::Tensor& like) {
  std::vector<int64_t> sizes = {rows};
  sizes.insert(sizes.end(), row.begin(), row.end());
  return at::empty(sizes, like.options());
}

// An absent state travels between forward and backward as a tensor of no states.
at::Tensor optional_to_tensor(const at::Tensor& state, const std::vector<int64_t>& sizes,
                              const at::Tensor& like) {
  if (state.defined()) return state.unsqueeze(0);
  return at::empty({0, sizes[0], sizes[1], sizes[2]}, state_options(like));
}

at::Tensor tensor_to_optional(const at::Tensor& states) {
  return states.size(0) == 0 ? at::Tensor() : states[0];
}

at::Tensor share_of(const std::vector<at::Tensor>& tensors) {
  return tensors.empty() ? at::Tensor() : tensors.front();
}

}  // namespace

LinearAttentionMix::LinearAttentionMix(const LinearAttentionShape& shape,
                                       std::map<int64_t, ConvolutionParameters> by_layer)
    : shape_(shape), by_layer_(std::move(by_layer)) {
  LONGSPAN_CHECK(shape.key_width == shape.value_width, "key width ", shape.key_width,
                 ", value width ", shape.value_width, ": linear attention has them alike");
}

std::vector<std::vector<int64_t>> LinearAttentionMix::input_rows() const {
  return {qkv_row(), {shape_.heads, shape_.key_width}, {shape_.heads}};
}

std::vector<int64_t> LinearAttentionMix::output_row() const {
  return {shape_.heads, shape_.value_width};
}

Range LinearAttentionMix::taps_before(const TokenLayout& layout, int64_t line_position) const {
  if (line_position >= layout.num_tokens()) return {line_position, line_position};
  const int64_t begin = layout.document(layout.document_at(line_position)).begin;
  return {std::max(begin, line_position - (shape_.conv_taps - 1)), line_position};
}

Range LinearAttentionMix::last_rows(const MixCall& call) const {
  return intersect(taps_before(*call.layout, call.layout->chunk(call.chunk).end), call.piece());
}

LineExchange LinearAttentionMix::tap_exchange(const MixCall& call) const {
  std::vector<std::vector<Range>> wanted;
  for (int rank = 0; rank < call.layout->num_ranks(); ++rank) {
    const Range piece = call.layout->piece(call.chunk, rank);
    wanted.emplace_back();
    if (piece.empty()) continue;
    const Range before = taps_before(*call.layout, piece.begin);
    if (!before.empty()) wanted.back().push_back(before);
  }
  return LineExchange(*call.layout, call.chunk, wanted, call.comm->rank());
}

// A rank without tokens may have no weights here.
at::Tensor LinearAttentionMix::convolution_weight(const MixCall& call,
                                                  const at::Tensor& qkv) const {
  if (qkv.size(0) == 0) {
    return at::zeros({3, shape_.heads, shape_.conv_taps, shape_.key_width}, qkv.options());
  }
  const ConvolutionParameters& ids = by_layer_.at(call.layer);
  Tensors weights;
  for (const ParameterId id : {ids.q, ids.k, ids.v}) {
    weights.push_back(call.access.weights->weight(id)
                          .view({shape_.heads, shape_.key_width, shape_.conv_taps})
                          .transpose(1, 2));
  }
  return at::stack(weights).contiguous();
}

void LinearAttentionMix::add_convolution_gradient(const MixCall& call,
                                                  const at::Tensor& gradient) const {
  const ConvolutionParameters& ids = by_layer_.at(call.layer);
  int64_t idx = 0;
  for (const ParameterId id : {ids.q, ids.k, ids.v}) {
    at::Tensor& sum = call.access.gradients->gradient(id);
    sum.add_(gradient[idx++].transpose(1, 2).reshape(sum.sizes()));
  }
}

std::unique_ptr<KdaPiece> LinearAttentionMix::make_piece(const MixCall& call, const Tensors& inputs,
                                                         const at::Tensor& before) const {
  const Range piece = call.piece();
  std::vector<Range> stretches;
  for (const DocumentPart& part : call.layout->document_parts(piece)) {
    stretches.push_back(shift(part.line, -piece.begin));
  }
  return make_kda_piece({shape_,
                         std::move(stretches),
                         {inputs[0], inputs[1], inputs[2]},
                         before,
                         convolution_weight(call, inputs[0])});
}

MixOutput LinearAttentionMix::forward(const MixCall& call, const Tensors& inputs,
                                      const std::vector<const MixContext*>& earlier,
                                      Tensors& /*choices*/) const {
  const at::Tensor& qkv = inputs[0];
  const TokenLayout& layout = *call.layout;
  const int rank = call.comm->rank();
  const Range piece = call.piece();

  RowStore own;
  for (const MixContext* context : earlier) own.add(context->rows);
  own.add(piece, {qkv});
  const RowStore rows = tap_exchange(call).fetch(own, {{qkv_row(), qkv.options()}}, *call.comm,
                                                 call.tag, text(call.op, ", convolution"));
  const Range taps = taps_before(layout, piece.begin);
  const at::Tensor before = piece.empty() || taps.empty() ? empty_rows(0, qkv_row(), qkv)
                                                          : rows.rows(taps)[0].contiguous();

  const std::unique_ptr<KdaPiece> work = make_piece(call, inputs, before);
  const StateChain chain(layout, call.chunk, shape_.heads);
  const at::Tensor share_before = chain.enters() ? share_of(earlier.back()->tensors) : at::Tensor();
  // One rank alone needs no maps: its state after the piece is the chunk's.
  const bool alone = layout.num_ranks() == 1;
  StateChain::Result states{chain.takes(rank) ? share_before : at::Tensor(), share_before};
  if (!alone) {
    const at::Tensor map = chain.gives(rank) ? work->map(chain.passes(rank)) : at::Tensor();
    states =
        chain.forward(map, share_before, {shape_.key_width, shape_.value_width, state_options(qkv)},
                      *call.comm, call.tag + kChainTag, call.op);
  }
  auto [output, state_after] = work->forward(states.state, alone && chain.gives(rank));
  if (alone && !piece.empty()) states.share = state_after;

  MixOutput result;
  result.tensors = {
      output,
      optional_to_tensor(states.state, {shape_.heads, shape_.key_width, shape_.value_width}, qkv),
      before};
  if (const Range last = last_rows(call); !last.empty()) {
    result.context.rows.add(last, {qkv.narrow(0, last.begin - piece.begin, last.size()).clone()});
  }
  if (chain.leaves()) result.context.tensors = {states.share};
  return result;
}

MixContext LinearAttentionMix::carry(const MixCall& call, const MixContext& whole,
                                     int first_later_chunk) const {
  MixContext carried;
  if (first_later_chunk >= call.layout->num_chunks()) return carried;
  // All of the last rows or none, so that their gradients have one shape.
  const Range last = last_rows(call);
  const Range looked_at = taps_before(*call.layout, call.layout->chunk(first_later_chunk).begin);
  if (!intersect(last, looked_at).empty())
    carried.rows.add(last, {whole.rows.rows(last)[0].clone()});
  // Each chunk's state moves on into the next one's.
  if (first_later_chunk == call.chunk + 1) {
    for (const at::Tensor& share : whole.tensors) carried.tensors.push_back(share.clone());
  }
  return carried;
}

MixContextGradient LinearAttentionMix::zero_gradient(const MixCall& call, const MixContext& context,
                                                     MixContextGradient* carried) const {
  MixContextGradient gradient;
  std::vector<Range> lines;
  at::TensorOptions options;
  if (context.rows.num_sources() > 0) {
    lines.push_back(last_rows(call));
    options = state_options(context.rows.tensors(0)[0]);
  }
  gradient.rows = std::make_unique<RowAccumulator>(
      lines, std::vector<std::vector<int64_t>>{qkv_row()}, options);
  for (const at::Tensor& share : context.tensors) {
    gradient.tensors.push_back(at::zeros_like(share));
  }
  if (carried == nullptr) return gradient;
  if (carried->rows != nullptr && carried->rows->store().num_sources() > 0) {
    gradient.rows = std::move(carried->rows);
  }
  if (!carried->tensors.empty()) gradient.tensors = std::move(carried->tensors);
  return gradient;
}

Tensors LinearAttentionMix::backward(const MixCall& call, const MixBackwardInputs& given) const {
  const int rank = call.comm->rank();
  const at::Tensor d_output = given.output_gradient.contiguous();
  const at::Tensor state_before = tensor_to_optional(given.output[1]);
  const at::Tensor& before = given.output[2];
  const std::unique_ptr<KdaPiece> work = make_piece(call, given.inputs, before);

  const StateChain chain(*call.layout, call.chunk, shape_.heads);
  const at::Tensor d_share_after =
      chain.leaves() ? share_of(given.gradients.back()->tensors) : at::Tensor();
  const bool alone = call.layout->num_ranks() == 1;
  StateChain::Result d_states{chain.gives(rank) ? d_share_after : at::Tensor(), d_share_after};
  if (!alone) {
    const at::Tensor map =
        chain.takes(rank) ? work->gradient_map(d_output, chain.passes(rank)) : at::Tensor();
    d_states = chain.backward(map, d_share_after,
                              {shape_.key_width, shape_.value_width, state_options(d_output)},
                              *call.comm, call.tag + kChainTag, call.op);
  }
  KdaPiece::Gradients gradients = work->backward(d_output, state_before, d_states.state);
  if (alone && !call.piece().empty()) d_states.share = gradients.state_before;
  if (chain.enters()) {
    const auto previous = static_cast<size_t>(call.chunk - 1);
    share_of(given.gradients[previous]->tensors).add_(d_states.share);
  }
  if (!call.piece().empty()) add_convolution_gradient(call, gradients.weight_3HNK);
  give_taps_back(call, given, gradients.before_N3HK, gradients.inputs.qkv_T3HK);
  return {gradients.inputs.qkv_T3HK, gradients.inputs.g_THK, gradients.inputs.beta_TH};
}

// Adds to d_qkv what other pieces' convolutions, of this chunk and of later ones, give back.
void LinearAttentionMix::give_taps_back(const MixCall& call, const MixBackwardInputs& given,
                                        const at::Tensor& d_before, const at::Tensor& d_qkv) const {
  const Range piece = call.piece();
  RowStore sums;
  for (size_t chunk = 0; chunk < static_cast<size_t>(call.chunk); ++chunk) {
    sums.add(given.gradients[chunk]->rows->store());
  }
  sums.add(piece, {d_qkv});
  RowStore gradients;
  gradients.add({piece.begin - d_before.size(0), piece.begin}, {d_before});
  RowAccumulator owned(std::move(sums));
  tap_exchange(call).give_back(gradients, {{qkv_row(), state_options(d_qkv)}}, owned, *call.comm,
                               call.tag, text(call.op, ", convolution"));
  const Range last = last_rows(call);
  if (last.empty()) return;
  d_qkv.narrow(0, last.begin - piece.begin, last.size())
      .add_(given.gradients.back()->rows->rows(last)[0]);
}

}  // namespace longspan
