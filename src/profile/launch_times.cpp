#include "profile/launch_times.h"

#include <ATen/ops/full.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/zeros.h>

#include <cmath>
#include <limits>

#include "attention/attention_kernel.h"
#include "attention/row_arithmetic.h"
#include "device/device.h"

namespace longspan {

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

LaunchTimes time_launch(const TimedLaunch& launch, const TimingOptions& options) {
  const AttentionShape shape = timed_shape(launch.heads);
  const at::TensorOptions values =
      at::TensorOptions(timed_type(options.device)).device(options.device);
  const at::TensorOptions sums = values.dtype(accumulate_type(timed_type(options.device)));
  const at::TensorOptions results = launch.one_part ? values : sums;
  const std::vector<int64_t> query_sizes = {launch.query_rows, shape.heads, shape.head_width};
  const std::vector<int64_t> key_sizes = {launch.key_rows, shape.key_heads, shape.head_width};
  const at::Tensor q = at::randn(query_sizes, values);
  const at::Tensor k = at::randn(key_sizes, values);
  const at::Tensor v = at::randn(key_sizes, values);
  const at::Tensor o = at::zeros(query_sizes, results);
  const at::Tensor lse =
      at::full({launch.query_rows, shape.heads}, -std::numeric_limits<double>::infinity(), sums);
  RowStore queries;
  queries.add({0, launch.query_rows}, {q, o, lse});
  RowStore keys;
  keys.add({0, launch.key_rows}, {k, v});
  // Every run merges the same keys once more: other values of o and lse, the same work.
  LaunchTimes times;
  times.forward =
      time_repeatedly(options, [&] { attention_forward(shape, launch.slices, queries, keys); });

  const at::Tensor output = o.to(values.dtype());
  const at::Tensor d_o = at::randn(query_sizes, values);
  const at::Tensor delta = row_delta(shape, output, d_o);
  std::vector<at::Tensor> of_queries = {q, d_o, lse, delta, at::zeros(query_sizes, results)};
  if (backward_reads_output(shape, timed_type(options.device), options.device)) {
    of_queries.push_back(output);
  }
  RowStore gradient_queries;
  gradient_queries.add({0, launch.query_rows}, std::move(of_queries));
  RowStore gradient_keys;
  gradient_keys.add({0, launch.key_rows},
                    {k, v, at::zeros(key_sizes, sums), at::zeros(key_sizes, sums)});
  times.backward = time_repeatedly(
      options, [&] { attention_backward(shape, launch.slices, gradient_queries, gradient_keys); });
  return times;
}

}  // namespace longspan
