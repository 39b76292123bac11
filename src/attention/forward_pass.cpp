#include <c10/core/GradMode.h>

#include <limits>

#include "attention/attention_kernel.h"
#include "attention/attention_pass.h"
#include "attention/real_types.h"
#include "attention/row_arithmetic.h"
#include "base/check.h"

namespace longspan {
namespace {

using Type = MessageField::Type;

// Tensors of a source: queries {q}, keys {k, v}, results {o, lse}.
AttentionPassFields fields(const AttentionShape& shape) {
  const std::vector<int64_t> query = {shape.heads, shape.head_width};
  const std::vector<int64_t> key = {shape.key_heads, shape.head_width};
  return {.out = {{RowKind::kQuery, 0, query, Type::kCompute},
                  {RowKind::kKeyValue, 0, key, Type::kCompute},
                  {RowKind::kKeyValue, 1, key, Type::kCompute}},
          .back = {{RowKind::kQuery, 0, query, Type::kResult},
                   {RowKind::kQuery, 1, {shape.heads}, Type::kAccumulate}}};
}

}  // namespace

AttentionForwardPass::AttentionForwardPass(const AttentionPlan& plan, const TokenLayout& layout,
                                           Communicator& comm, const AttentionPassOptions& options)
    : AttentionPass(plan, layout, comm, options, fields(options.shape)) {
  LONGSPAN_CHECK(plan.direction == Direction::kForward, options.op, ": a backward plan");
  const AttentionShape& shape = options_.shape;
  query_results_.row_shapes = {{shape.heads, shape.head_width}, {shape.heads}};
  query_results_.empty_values = {0, -std::numeric_limits<double>::infinity()};
}

void AttentionForwardPass::begin(const at::Tensor& q_THK, const RowStore& keys) {
  const c10::NoGradGuard no_grad;
  begin_inputs({q_THK}, keys);
  add_own_results();
  const std::vector<at::Tensor> away = add_away_results(RowKind::kQuery);
  LONGSPAN_CHECK(own_result_bytes() <= expected_buffers().home_result_bytes &&
                     tensor_bytes(away) == expected_buffers().away_result_bytes,
                 options_.op, ": results have another size than computed");
}

void AttentionForwardPass::launch(const std::vector<AttentionSlice>& slices,
                                  const RowStore& queries, const RowStore& keys) {
  attention_forward(options_.shape, slices, queries, keys);
}

void AttentionForwardPass::merge(const std::vector<at::Tensor>& result,
                                 const std::vector<at::Tensor>& part) {
  merge_rows(options_.shape, result[0], result[1], part[0], part[1]);
}

AttentionForwardPass::Result AttentionForwardPass::finish() {
  const c10::NoGradGuard no_grad;
  check_finished();
  return {own_result(), other_own_results().at(0)};
}

}  // namespace longspan
