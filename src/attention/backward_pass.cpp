#include <ATen/ops/empty_like.h>
#include <c10/core/GradMode.h>

#include "attention/attention_kernel.h"
#include "attention/attention_pass.h"
#include "attention/real_types.h"
#include "attention/row_arithmetic.h"
#include "base/check.h"

namespace longspan {
namespace {

using Type = MessageField::Type;

// Tensors of a source: queries {q, dO, lse, delta}, keys {k, v}, results {dq} and {dk, dv}.
AttentionPassFields fields(const AttentionShape& shape) {
  const std::vector<int64_t> query = {shape.heads, shape.head_width};
  const std::vector<int64_t> key = {shape.key_heads, shape.head_width};
  return {.out = {{RowKind::kQuery, 0, query, Type::kCompute},
                  {RowKind::kQuery, 1, query, Type::kCompute},
                  {RowKind::kQuery, 2, {shape.heads}, Type::kAccumulate},
                  {RowKind::kQuery, 3, {shape.heads}, Type::kAccumulate},
                  {RowKind::kKeyValue, 0, key, Type::kCompute},
                  {RowKind::kKeyValue, 1, key, Type::kCompute}},
          .back = {{RowKind::kQuery, 0, query, Type::kResult},
                   {RowKind::kKeyValue, 0, key, Type::kResult},
                   {RowKind::kKeyValue, 1, key, Type::kResult}}};
}

}  // namespace

AttentionBackwardPass::AttentionBackwardPass(const AttentionPlan& plan, const TokenLayout& layout,
                                             Communicator& comm,
                                             const AttentionPassOptions& options)
    : AttentionPass(plan, layout, comm, options, fields(options.shape)),
      reads_outputs_(backward_reads_output(options.shape, options.type, options.device)) {
  LONGSPAN_CHECK(plan.direction == Direction::kBackward, options.op, ": a forward plan");
  const AttentionShape& shape = options_.shape;
  const std::vector<int64_t> key_row = {shape.key_heads, shape.head_width};
  query_results_.row_shapes = {{shape.heads, shape.head_width}};
  query_results_.empty_values = {0};
  key_results_.row_shapes = {key_row, key_row};
  key_results_.empty_values = {0, 0};
}

void AttentionBackwardPass::begin(const Inputs& inputs, const RowStore& keys,
                                  const RowAccumulator& d_keys) {
  const c10::NoGradGuard no_grad;
  LONGSPAN_CHECK(inputs.o_THK.is_contiguous() && inputs.d_o_THK.is_contiguous(), options_.op,
                 ": O with strides ", inputs.o_THK.strides(), ", dO with strides ",
                 inputs.d_o_THK.strides(), "; both must be contiguous");
  if (reads_outputs_) outputs_.add(own_piece(), {inputs.o_THK});
  // Where kernels read O, delta is for other ranks.
  const at::Tensor delta = !reads_outputs_ || sends_queries()
                               ? row_delta(options_.shape, inputs.o_THK, inputs.d_o_THK)
                               : at::empty_like(inputs.lse_TH);
  begin_inputs({inputs.q_THK, inputs.d_o_THK, inputs.lse_TH, delta}, keys);
  add_own_results();
  key_results_.rows.add(d_keys.store());
  const std::vector<at::Tensor> away_queries = add_away_results(RowKind::kQuery);
  const std::vector<at::Tensor> away_keys = add_away_results(RowKind::kKeyValue);
  LONGSPAN_CHECK(own_result_bytes() <= expected_buffers().home_result_bytes &&
                     tensor_bytes(away_queries) + tensor_bytes(away_keys) ==
                         expected_buffers().away_result_bytes &&
                     tensor_bytes({delta}) == expected_buffers().delta_bytes,
                 options_.op, ": results have another size than computed");
}

void AttentionBackwardPass::arrived(const RowMessage::Arrival& arrival) {
  if (!reads_outputs_ || arrival.kind != RowKind::kQuery) return;
  outputs_.add(arrival.line,
               {projected_output(options_.shape, arrival.tensors[1], arrival.tensors[3])});
}

RowStore AttentionBackwardPass::launch_queries(const std::vector<Range>& lines) const {
  const RowStore queries = AttentionPass::launch_queries(lines);
  return reads_outputs_ ? join(queries, outputs_, lines) : queries;
}

void AttentionBackwardPass::launch(const std::vector<AttentionSlice>& slices,
                                   const RowStore& queries, const RowStore& keys) {
  attention_backward(options_.shape, slices, queries, keys);
}

void AttentionBackwardPass::merge(const std::vector<at::Tensor>& result,
                                  const std::vector<at::Tensor>& part) {
  for (size_t idx = 0; idx < result.size(); ++idx) result[idx].add_(part[idx]);
}

at::Tensor AttentionBackwardPass::finish() {
  const c10::NoGradGuard no_grad;
  check_finished();
  return own_result();
}

}  // namespace longspan
