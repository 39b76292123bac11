#include "sparse_attention/sparse_attention_mix.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/full.h>
#include <ATen/ops/zeros.h>
#include <c10/core/GradMode.h>

#include "base/check.h"
#include "device/device.h"
#include "kernels/cpu/pooled_keys.h"
#include "layers/parallel_ranges.h"
#include "layers/real_types.h"
#include "sparse_attention/gpu_sparse_attention.h"
#include "sparse_attention/index_pass.h"
#include "sparse_attention/selected_attention.h"

namespace longspan {
namespace {

constexpr int64_t kLatentTag = 16;
constexpr int64_t kIndexTag = 64;
static_assert(kIndexTag + kTagsPerIndexPass <= kTagsPerMix);
static_assert(kLatentTag + kTagsPerLatentExchange <= kIndexTag);

constexpr int64_t kPoolGrain = 64;

// Index keys of pools [pools, D] of the keys and gates of their tokens.
void pool_rows(const at::Tensor& keys, const at::Tensor& gates, int64_t pool_tokens,
               const at::Tensor& pooled) {
  if constexpr (kBuiltWithCuda) {
    if (keys.is_cuda()) return gpu_pool_keys(keys, gates, pool_tokens, pooled);
  }
  for_real_type(keys.scalar_type(), [&]<typename Real>() {
    parallel_ranges({0, pooled.size(0)}, kPoolGrain, [&](Range some) {
      pool_keys(keys.const_data_ptr<Real>(), gates.const_data_ptr<Real>(), some, pool_tokens,
                pooled.size(1), pooled.mutable_data_ptr<Real>());
    });
  });
}

RowStore latents_of(const std::vector<const MixContext*>& contexts) {
  RowStore rows;
  for (const MixContext* context : contexts) rows.add(context->rows);
  return rows;
}

// The rows of the unfinished pool at a chunk's end that lie in this rank's piece.
Range own_unfinished(const MixCall& call, const PoolAxis& axis, int chunk) {
  return intersect(axis.unfinished_rows(chunk), call.layout->piece(chunk, call.comm->rank()));
}

std::vector<at::Tensor> copies(const std::vector<at::Tensor>& tensors) {
  std::vector<at::Tensor> copied;
  for (const at::Tensor& tensor : tensors) copied.push_back(tensor.clone());
  return copied;
}

}  // namespace

struct SparseAttentionMix::Inputs {
  Inputs(const std::vector<at::Tensor>& inputs, const MixCall& call,
         const std::vector<std::vector<int64_t>>& rows) {
    LONGSPAN_CHECK(inputs.size() == rows.size(), call.op, ": ", inputs.size(), " inputs, expected ",
                   rows.size());
    for (size_t idx = 0; idx < rows.size(); ++idx) {
      LONGSPAN_CHECK(inputs[idx].size(0) == call.piece().size() &&
                         inputs[idx].sizes().slice(1) == at::IntArrayRef(rows[idx]) &&
                         inputs[idx].scalar_type() == inputs[0].scalar_type() &&
                         inputs[idx].device() == inputs[0].device(),
                     call.op, ": input ", idx, " is ", inputs[idx].toString(), " ",
                     inputs[idx].sizes(), " for ", call.piece().size(), " tokens");
    }
    q_THR = inputs[0].detach().contiguous();
    c_TR = inputs[1].detach().contiguous();
    index_q_TJD = inputs[2].detach().contiguous();
    index_weights_TJ = inputs[3].detach().contiguous();
    index_k_TD = inputs[4].detach().contiguous();
    gates_TD = inputs[5].detach().contiguous();
  }

  at::Tensor q_THR, c_TR, index_q_TJD, index_weights_TJ, index_k_TD, gates_TD;
};

SparseAttentionMix::SparseAttentionMix(SparseAttentionOptions options)
    : options_(std::move(options)) {
  LONGSPAN_CHECK(options_.attention.pool_tokens == options_.index.pool_tokens && options_.plans,
                 "sparse attention: pools of ", options_.attention.pool_tokens, " and ",
                 options_.index.pool_tokens, " tokens, or no source of plans");
}

std::vector<std::vector<int64_t>> SparseAttentionMix::input_rows() const {
  const SparseAttentionShape& attention = options_.attention;
  const IndexShape& index = options_.index;
  return {{attention.heads, attention.width},
          {attention.width},
          {index.heads, index.width},
          {index.heads},
          {index.width},
          {index.width}};
}

std::vector<int64_t> SparseAttentionMix::output_row() const {
  return {options_.attention.heads, options_.attention.width};
}

// Whether a query in the line range has more pools to see than it may choose.
bool SparseAttentionMix::must_choose(const TokenLayout& layout, const Range& line) const {
  for (const DocumentPart& part : layout.document_parts(line)) {
    if (options_.index.must_choose(part.positions.end - 1)) return true;
  }
  return false;
}

// Pools in the list of a chunk's queries: no more than any of them selects.
int64_t SparseAttentionMix::list_width(const TokenLayout& layout, int chunk) const {
  int64_t most = 0;
  for (const DocumentPart& part : layout.document_parts(layout.chunk(chunk))) {
    most = std::max(most, options_.index.visible_pools(part.positions.end - 1));
  }
  return std::min(most, options_.index.top_pools);
}

// Pool keys of the own piece, and what an unfinished pool leaves for a later chunk.
void SparseAttentionMix::add_index(const MixCall& call, const PoolAxis& axis, const Inputs& inputs,
                                   const std::vector<const MixContext*>& earlier,
                                   MixContext* context) const {
  const TokenLayout& layout = *call.layout;
  const Range piece = call.piece();
  RowStore own;
  own.add(piece, {inputs.index_k_TD, inputs.gates_TD});
  for (int chunk = 0; chunk < call.chunk; ++chunk) {
    const Range left = own_unfinished(call, axis, chunk);
    if (!left.empty()) own.add(left, earlier[static_cast<size_t>(chunk)]->tensors);
  }
  std::vector<std::vector<Range>> wanted;
  for (int rank = 0; rank < layout.num_ranks(); ++rank) {
    const Range before = axis.rows_before(layout.piece(call.chunk, rank));
    wanted.push_back(before.empty() ? std::vector<Range>{} : std::vector<Range>{before});
  }
  const LineField field{{options_.index.width}, inputs.index_k_TD.options()};
  const RowStore rows = LineExchange(layout, call.chunk, wanted, call.comm->rank())
                            .fetch(own, {field, field}, *call.comm, call.tag,
                                   call.op + ", tokens of a pool that another piece began");
  const Range own_pools = axis.pools(piece);
  const at::Tensor keys =
      at::empty({own_pools.size(), options_.index.width}, inputs.index_k_TD.options());
  for (const DocumentPart& part : layout.document_parts(piece)) {
    const Range pools = axis.pools(part.line);
    if (pools.empty()) continue;
    const std::vector<at::Tensor> tokens =
        rows.rows(axis.rows(part.document, shift(pools, -axis.first_pool(part.document))));
    pool_rows(tokens[0], tokens[1], axis.pool_tokens(),
              keys.narrow(0, pools.begin - own_pools.begin, pools.size()));
  }
  context->index_rows.add(own_pools, {keys});
  const Range left = own_unfinished(call, axis, call.chunk);
  if (!left.empty()) context->tensors = copies(own.rows(left));
}

at::Tensor SparseAttentionMix::select(const MixCall& call, const PoolAxis& axis,
                                      const Inputs& inputs,
                                      const std::vector<const MixContext*>& earlier,
                                      const MixContext& own) const {
  const TokenLayout& layout = *call.layout;
  if (!must_choose(layout, layout.chunk(call.chunk))) {
    return selected_pools(options_.index, layout, call.piece(), /*lists_TB=*/{},
                          list_width(layout, call.chunk), inputs.q_THR.device());
  }
  RowStore pool_keys;
  for (const MixContext* context : earlier) pool_keys.add(context->index_rows);
  pool_keys.add(own.index_rows);
  const std::shared_ptr<const AttentionPlan> plan = options_.plans(layout, call.chunk);
  IndexPass pass(options_.index, *plan, axis, layout, *call.comm,
                 {.work_bytes = options_.index_work_bytes,
                  .tag = call.tag + kIndexTag,
                  .op = call.op + ", index"});
  return pass.run(inputs.index_q_TJD, inputs.index_weights_TJ, pool_keys);
}

LatentExchange SparseAttentionMix::latent_exchange(const MixCall& call, const PoolAxis& axis,
                                                   const at::TensorOptions& options) const {
  return {*call.layout,         axis,
          call.chunk,           LineField{{options_.attention.width}, options},
          *call.comm,           call.tag + kLatentTag,
          call.op + ", latents"};
}

std::vector<at::Tensor> SparseAttentionMix::given_choices(const at::Tensor& pools_TB) const {
  const auto travel = static_cast<int32_t>(LatentTravel::kGather);
  return {pools_TB.contiguous(), at::full({1}, travel, at::kInt)};
}

MixOutput SparseAttentionMix::forward(const MixCall& call, const std::vector<at::Tensor>& inputs,
                                      const std::vector<const MixContext*>& earlier,
                                      std::vector<at::Tensor>& choices) const {
  const c10::NoGradGuard no_grad;
  const Inputs given(inputs, call, input_rows());
  const TokenLayout& layout = *call.layout;
  const PoolAxis axis(layout, options_.index.pool_tokens);
  MixOutput output;
  output.context.rows.add(call.piece(), {given.c_TR});
  LatentExchange exchange = latent_exchange(call, axis, given.c_TR.options());
  if (choices.empty()) {
    // Nobody looks at an index where all documents fit into the budget.
    if (must_choose(layout, {0, layout.num_tokens()})) {
      add_index(call, axis, given, earlier, &output.context);
    }
    const at::Tensor pools = select(call, axis, given, earlier, output.context);
    const LatentTravel travel = exchange.choose(pools, options_.latents);
    choices = {pools, at::full({1}, static_cast<int32_t>(travel), at::kInt)};
  }
  LONGSPAN_CHECK(choices.size() == 2, call.op, ": ", choices.size(), " choices to repeat");
  std::vector<const MixContext*> contexts = earlier;
  contexts.push_back(&output.context);
  const auto travel = static_cast<LatentTravel>(*choices[1].const_data_ptr<int32_t>());
  const RowStore latents = exchange.receive(travel, choices[0], latents_of(contexts));
  SelectedOutput attended = selected_attention(options_.attention, layout, call.piece(),
                                               given.q_THR, choices[0], latents);
  output.tensors = {attended.o_THR, attended.lse_TH};
  return output;
}

MixContext SparseAttentionMix::carry(const MixCall& call, const MixContext& whole,
                                     int first_later_chunk) const {
  const TokenLayout& layout = *call.layout;
  const PoolAxis axis(layout, options_.index.pool_tokens);
  MixContext carried;
  for (const Range& line : layout.carried_rows(call.chunk, call.comm->rank(), first_later_chunk)) {
    carried.rows.add(line, copies(whole.rows.rows(line)));
    const Range pools = axis.pools(line);
    if (pools.empty() || whole.index_rows.num_sources() == 0) continue;
    carried.index_rows.add(pools, copies(whole.index_rows.rows(pools)));
  }
  carried.tensors = copies(whole.tensors);
  return carried;
}

MixContextGradient SparseAttentionMix::zero_gradient(const MixCall& call, const MixContext& context,
                                                     MixContextGradient* carried) const {
  MixContextGradient gradient;
  const std::vector<Range> lines = context.rows.lines();
  at::TensorOptions options;
  if (!lines.empty()) {
    const at::Tensor& rows = context.rows.tensors(0)[0];
    options = rows.options().dtype(accumulate_type(rows.scalar_type()));
  }
  gradient.rows = std::make_unique<RowAccumulator>(
      lines, std::vector<std::vector<int64_t>>{{options_.attention.width}}, options);
  if (carried == nullptr || !carried->rows) return gradient;
  for (const Range& line : carried->rows->store().lines()) {
    LONGSPAN_CHECK(covers(lines, line), call.op, ": a gradient of rows ", line,
                   " that are not in the context");
    gradient.rows->add(line, carried->rows->rows(line));
  }
  carried->rows.reset();
  return gradient;
}

std::vector<at::Tensor> SparseAttentionMix::backward(const MixCall& call,
                                                     const MixBackwardInputs& given) const {
  const c10::NoGradGuard no_grad;
  const Inputs inputs(given.inputs, call, input_rows());
  const auto chunks = static_cast<size_t>(call.chunk) + 1;
  LONGSPAN_CHECK(given.contexts.size() == chunks && given.gradients.size() == chunks &&
                     given.output.size() == 2 && given.choices.size() == 2,
                 call.op, ": ", given.contexts.size(), " contexts, ", given.gradients.size(),
                 " gradients, ", given.output.size(), " outputs, ", given.choices.size(),
                 " choices");
  const TokenLayout& layout = *call.layout;
  const PoolAxis axis(layout, options_.index.pool_tokens);
  LatentExchange exchange = latent_exchange(call, axis, inputs.c_TR.options());
  const auto travel = static_cast<LatentTravel>(*given.choices[1].const_data_ptr<int32_t>());
  const at::Tensor& pools = given.choices[0];
  const RowStore latents = exchange.receive(travel, pools, latents_of(given.contexts));
  RowStore own_sums;
  for (const MixContextGradient* gradient : given.gradients) {
    own_sums.add(gradient->rows->store());
  }
  const RowStore sums = exchange.zero_gradients(own_sums);
  const at::Tensor d_q = selected_attention_backward(
      options_.attention, layout, call.piece(),
      {inputs.q_THR, pools, given.output[0], given.output[1], given.output_gradient.contiguous()},
      latents, sums);
  exchange.give_back(sums, own_sums);
  const at::Tensor d_c =
      call.piece().empty()
          ? at::zeros({0, options_.attention.width}, inputs.c_TR.options())
          : given.gradients.back()->rows->rows(call.piece())[0].to(inputs.c_TR.scalar_type());
  return {d_q, d_c, {}, {}, {}, {}};
}

}  // namespace longspan
