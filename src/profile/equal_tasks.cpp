#include "profile/equal_tasks.h"

#include <ATen/ops/full.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/zeros.h>

#include <cmath>
#include <limits>

#include "attention/attention_kernel.h"
#include "attention/row_arithmetic.h"
#include "device/device.h"
#include "kernels/packed_tiles.h"

namespace longspan {
namespace {

// Whole documents that a rank has to itself: where the kernels of a GPU give results in the type of
// the values, those are kept.
bool is_one_part(const EqualTasks& tasks) {
  return tasks.causal && tasks.query_rows == tasks.key_rows && tasks.query_rows <= kUnsplitRowsMax;
}

// Rows that no task has, between the two halves of the tasks: none of a launch's rows lie in one
// piece in a plan either, but short documents lie beside short documents.
int64_t gap_rows(const EqualTasks& tasks, at::Device device) {
  return device.is_cpu() || tasks.count == 1 ? 0 : 1;
}

std::vector<AttentionSlice> slices_of(const EqualTasks& tasks, int64_t gap) {
  std::vector<AttentionSlice> slices;
  for (int64_t task = 0; task < tasks.count; ++task) {
    const int64_t before = task < tasks.count / 2 ? 0 : gap;
    const Range queries = shift({task * tasks.query_rows, (task + 1) * tasks.query_rows}, before);
    const Range keys = shift({task * tasks.key_rows, (task + 1) * tasks.key_rows}, before);
    const int64_t diagonal = tasks.causal ? tasks.key_rows - tasks.query_rows : tasks.key_rows;
    slices.push_back({static_cast<int32_t>(task), 0, 0, queries, keys, diagonal});
  }
  return slices;
}

}  // namespace

at::ScalarType timed_type(at::Device device) {
  return device.is_cpu() ? at::kFloat : at::kBFloat16;
}

AttentionShape timed_shape(const TimedHeads& heads) {
  AttentionShape shape;
  shape.heads = heads.query_heads;
  shape.key_heads = heads.key_heads;
  shape.head_width = heads.head_width;
  shape.scale = 1 / std::sqrt(static_cast<double>(heads.head_width));
  return shape;
}

TaskTimes time_equal_tasks(const TimedHeads& heads, const EqualTasks& tasks,
                           const TimingOptions& options) {
  const AttentionShape shape = timed_shape(heads);
  const int64_t gap = gap_rows(tasks, options.device);
  const std::vector<AttentionSlice> slices = slices_of(tasks, gap);
  const int64_t query_rows = tasks.count * tasks.query_rows + gap;
  const int64_t key_rows = tasks.count * tasks.key_rows + gap;
  const at::TensorOptions values =
      at::TensorOptions(timed_type(options.device)).device(options.device);
  const at::TensorOptions sums = values.dtype(accumulate_type(timed_type(options.device)));
  const at::TensorOptions results = is_one_part(tasks) ? values : sums;
  const std::vector<int64_t> query_sizes = {query_rows, shape.heads, shape.head_width};
  const std::vector<int64_t> key_sizes = {key_rows, shape.key_heads, shape.head_width};
  const at::Tensor q = at::randn(query_sizes, values);
  const at::Tensor k = at::randn(key_sizes, values);
  const at::Tensor v = at::randn(key_sizes, values);
  const at::Tensor o = at::zeros(query_sizes, results);
  const at::Tensor lse =
      at::full({query_rows, shape.heads}, -std::numeric_limits<double>::infinity(), sums);
  RowStore queries;
  queries.add({0, query_rows}, {q, o, lse});
  RowStore keys;
  keys.add({0, key_rows}, {k, v});
  // Every run merges the same keys once more: other values of o and lse, the same work.
  TaskTimes times;
  times.forward =
      time_repeatedly(options, [&] { attention_forward(shape, slices, queries, keys); });

  const at::Tensor output = o.to(values.dtype());
  const at::Tensor d_o = at::randn(query_sizes, values);
  const at::Tensor delta = row_delta(shape, output, d_o);
  std::vector<at::Tensor> of_queries = {q, d_o, lse, delta, at::zeros(query_sizes, results)};
  if (backward_reads_output(shape, timed_type(options.device), options.device)) {
    of_queries.push_back(output);
  }
  RowStore gradient_queries;
  gradient_queries.add({0, query_rows}, std::move(of_queries));
  RowStore gradient_keys;
  gradient_keys.add({0, key_rows}, {k, v, at::zeros(key_sizes, sums), at::zeros(key_sizes, sums)});
  times.backward = time_repeatedly(
      options, [&] { attention_backward(shape, slices, gradient_queries, gradient_keys); });
  return times;
}

}  // namespace longspan
