// Speed of core attention on a GPU for documents of given lengths, all in one launch.
//
//   longspan_attention_speed --documents 8192,8192,8192,8192
//   longspan_attention_speed --documents 11745,11021,7409,2000 --documents 65536 --sums
//
// For each list one line of JSON: medians of forward and backward in milliseconds (CUDA events
// around a launch with all its copies and sums), and the rate over visible pairs. With --sums
// results are float32 sums, as of rows that several ranks compute, without it each row has one
// part. 16 query and 4 key heads of 128 in bfloat16, unless told otherwise.
#include <ATen/ops/full.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/zeros.h>
#include <c10/core/GradMode.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <limits>
#include <nlohmann/json.hpp>
#include <sstream>

#include "attention/attention_kernel.h"
#include "base/check.h"
#include "device/device.h"
#include "device/device_timer.h"

namespace longspan {
namespace {

const at::Device kGpu{at::kCUDA, 0};
constexpr int kWarmUps = 3;

struct Options {
  std::vector<std::string> documents;
  AttentionShape shape{.heads = 16, .key_heads = 4, .head_width = 128};
  int repeats = 9;
  bool sums = false;
  bool deterministic = false;
};

std::vector<int64_t> lengths_of(const std::string& list) {
  std::vector<int64_t> lengths;
  std::istringstream stream(list);
  for (std::string part; std::getline(stream, part, ',');) lengths.push_back(std::stoll(part));
  return lengths;
}

template <typename Launch>
double median_ms(int repeats, const Launch& launch) {
  DeviceTimer timer(kGpu);
  std::vector<double> times;
  for (int repeat = 0; repeat < kWarmUps + repeats; ++repeat) {
    timer.start();
    launch();
    timer.stop();
    finish_work(kGpu);
    const double seconds = timer.take_seconds();
    if (repeat >= kWarmUps) times.push_back(1e3 * seconds);
  }
  std::nth_element(times.begin(), times.begin() + repeats / 2, times.end());
  return times[static_cast<size_t>(repeats / 2)];
}

nlohmann::json measured(const Options& options, const std::vector<int64_t>& documents) {
  const AttentionShape& shape = options.shape;
  std::vector<AttentionSlice> slices;
  int64_t rows = 0;
  double pairs = 0;
  for (const int64_t length : documents) {
    const Range whole{rows, rows + length};
    slices.push_back({static_cast<int32_t>(slices.size()), 0, 0, whole, whole, 0});
    rows = whole.end;
    pairs += static_cast<double>(length) * static_cast<double>(length + 1) / 2;
  }
  const auto compute = at::TensorOptions(at::kBFloat16).device(kGpu);
  const auto sums = compute.dtype(at::kFloat);
  const auto results = options.sums ? sums : compute;
  const std::vector<int64_t> query = {rows, shape.heads, shape.head_width};
  const std::vector<int64_t> key = {rows, shape.key_heads, shape.head_width};
  const at::Tensor q = at::randn(query, compute);
  const at::Tensor k = at::randn(key, compute);
  const at::Tensor v = at::randn(key, compute);
  const at::Tensor d_o = at::randn(query, compute);
  const at::Tensor lse =
      at::full({rows, shape.heads}, -std::numeric_limits<double>::infinity(), sums);
  const at::Tensor o = at::zeros(query, results);
  RowStore queries;
  queries.add({0, rows}, {q, o, lse});
  RowStore keys;
  keys.add({0, rows}, {k, v});
  // Every launch merges the same keys once more: other values of o and lse, the same work.
  const double forward_ms =
      median_ms(options.repeats, [&] { attention_forward(shape, slices, queries, keys); });
  RowStore gradient_queries;
  gradient_queries.add({0, rows}, {q, d_o, lse, lse, at::zeros(query, results), o.to(compute)});
  RowStore gradient_keys;
  gradient_keys.add({0, rows}, {k, v, at::zeros(key, sums), at::zeros(key, sums)});
  const double backward_ms = median_ms(
      options.repeats, [&] { attention_backward(shape, slices, gradient_queries, gradient_keys); });
  // Two products forward, five backward, of 2 FLOPs a pair and column.
  const double flops = 4 * pairs * static_cast<double>(shape.query_row_size());
  return {{"documents", documents.size()},
          {"rows", rows},
          {"forward_ms", forward_ms},
          {"backward_ms", backward_ms},
          {"forward_tflops", flops / forward_ms / 1e9},
          {"backward_tflops", 2.5 * flops / backward_ms / 1e9}};
}

int run(int argc, char** argv) {
  Options options;
  CLI::App app("Speed of core attention on a GPU for documents of given lengths");
  app.add_option("--documents", options.documents, "Lengths, with commas; may be given again")
      ->required();
  app.add_option("--heads", options.shape.heads, "Query heads");
  app.add_option("--key-heads", options.shape.key_heads, "Key heads");
  app.add_option("--head-width", options.shape.head_width, "Width of a head");
  app.add_option("--repeats", options.repeats, "Measured launches");
  app.add_flag("--sums", options.sums, "Results are float32 sums");
  app.add_flag("--deterministic", options.deterministic, "As run.deterministic");
  CLI11_PARSE(app, argc, argv);
  options.shape.scale = 1 / std::sqrt(static_cast<double>(options.shape.head_width));
  const c10::NoGradGuard no_grad;
  set_deterministic(options.deterministic);
  const DeviceThread on(kGpu);
  for (const std::string& list : options.documents) {
    std::printf("%s\n", measured(options, lengths_of(list)).dump().c_str());
    std::fflush(stdout);
  }
  return 0;
}

}  // namespace
}  // namespace longspan

int main(int argc, char** argv) {
  return longspan::run(argc, argv);
}
