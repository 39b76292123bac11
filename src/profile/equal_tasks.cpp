#include "profile/equal_tasks.h"

#include <ATen/ops/full.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/zeros.h>

#include <cmath>
#include <limits>

#include "attention/attention_kernel.h"
#include "kernels/cpu/attention_rows.h"

namespace longspan {
namespace {

AttentionShape shape_of(const TimedHeads& heads) {
  AttentionShape shape;
  shape.heads = heads.query_heads;
  shape.key_heads = heads.key_heads;
  shape.head_width = heads.head_width;
  shape.scale = 1 / std::sqrt(static_cast<double>(heads.head_width));
  return shape;
}

std::vector<AttentionSlice> slices_of(const EqualTasks& tasks) {
  std::vector<AttentionSlice> slices;
  for (int64_t task = 0; task < tasks.count; ++task) {
    const Range queries{task * tasks.query_rows, (task + 1) * tasks.query_rows};
    const Range keys{task * tasks.key_rows, (task + 1) * tasks.key_rows};
    const int64_t diagonal = tasks.causal ? tasks.key_rows - tasks.query_rows : tasks.key_rows;
    slices.push_back({static_cast<int32_t>(task), 0, 0, queries, keys, diagonal});
  }
  return slices;
}

}  // namespace

TaskTimes time_equal_tasks(const TimedHeads& heads, const EqualTasks& tasks,
                           const TimingOptions& options) {
  const AttentionShape shape = shape_of(heads);
  const std::vector<AttentionSlice> slices = slices_of(tasks);
  const int64_t query_rows = tasks.count * tasks.query_rows;
  const int64_t key_rows = tasks.count * tasks.key_rows;
  const std::vector<int64_t> query_sizes = {query_rows, shape.heads, shape.head_width};
  const std::vector<int64_t> key_sizes = {key_rows, shape.key_heads, shape.head_width};
  const at::Tensor q = at::randn(query_sizes);
  const at::Tensor k = at::randn(key_sizes);
  const at::Tensor v = at::randn(key_sizes);
  const at::Tensor o = at::zeros(query_sizes);
  const at::Tensor lse =
      at::full({query_rows, shape.heads}, -std::numeric_limits<double>::infinity());
  RowStore queries;
  queries.add({0, query_rows}, {q, o, lse});
  RowStore keys;
  keys.add({0, key_rows}, {k, v});
  // Every run merges the same keys once more: other values of o and lse, the same work.
  TaskTimes times;
  times.forward =
      time_repeatedly(options, [&] { attention_forward(shape, slices, queries, keys); });

  const at::Tensor d_o = at::randn(query_sizes);
  const at::Tensor delta = at::zeros({query_rows, shape.heads});
  attention_delta<float>(shape, query_rows, o.data_ptr<float>(), d_o.data_ptr<float>(),
                         delta.data_ptr<float>());
  RowStore gradient_queries;
  gradient_queries.add({0, query_rows}, {q, d_o, lse, delta, at::zeros(query_sizes)});
  RowStore gradient_keys;
  gradient_keys.add({0, key_rows}, {k, v, at::zeros(key_sizes), at::zeros(key_sizes)});
  times.backward = time_repeatedly(
      options, [&] { attention_backward(shape, slices, gradient_queries, gradient_keys); });
  return times;
}

}  // namespace longspan
