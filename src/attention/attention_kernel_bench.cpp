// Speed of the blocked attention kernels beside torch's flash attention for CPU.
//
//   attention_kernel_bench [threads] [heads] [key heads] [head width]
//
// Each line: a batch of equal documents, both directions. Seconds are CPU seconds of the calling
// thread with one thread (other work on the machine disturbs them little) and wall time with more,
// the least of several runs, alternating; GFLOP/s count visible pairs only (4 * pairs * H * K
// forward, 2.5 times that backward). torch runs document by document.
#include <ATen/Parallel.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/_scaled_dot_product_flash_attention_for_cpu.h>
#include <ATen/ops/_scaled_dot_product_flash_attention_for_cpu_backward.h>
#include <ATen/ops/full.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/zeros.h>
#include <time.h>

#include <cmath>
#include <cstdio>
#include <functional>
#include <limits>
#include <string>

#include "attention/attention_kernel.h"
#include "kernels/cpu/attention_rows.h"

namespace longspan {
namespace {

double now_s(bool cpu_time) {
  timespec time{};
  clock_gettime(cpu_time ? CLOCK_THREAD_CPUTIME_ID : CLOCK_MONOTONIC, &time);
  return static_cast<double>(time.tv_sec) + 1e-9 * static_cast<double>(time.tv_nsec);
}

struct Timings {
  double torch_s = 1e9;
  double own_s = 1e9;
};

Timings compare(const std::function<void()>& torch_way, const std::function<void()>& own_way) {
  const bool cpu_time = at::get_num_threads() == 1;
  Timings best;
  const double end = now_s(false) + 1.5;
  for (int run = 0; run < 3 || (run < 200 && now_s(false) < end); ++run) {
    double start = now_s(cpu_time);
    torch_way();
    best.torch_s = std::min(best.torch_s, now_s(cpu_time) - start);
    start = now_s(cpu_time);
    own_way();
    best.own_s = std::min(best.own_s, now_s(cpu_time) - start);
  }
  return best;
}

void print(const char* direction, const Timings& best, double flops) {
  std::printf("  %s torch %10.1f us %6.1f GFLOP/s, own %10.1f us %6.1f GFLOP/s: %.2fx", direction,
              best.torch_s * 1e6, flops / best.torch_s * 1e-9, best.own_s * 1e6,
              flops / best.own_s * 1e-9, best.torch_s / best.own_s);
}

void bench(const AttentionShape& shape, int64_t documents, int64_t tokens) {
  const int64_t total = documents * tokens;
  const at::Tensor q = at::randn({total, shape.heads, shape.head_width});
  const at::Tensor k = at::randn({total, shape.key_heads, shape.head_width});
  const at::Tensor v = at::randn({total, shape.key_heads, shape.head_width});
  const at::Tensor d_o = at::randn({total, shape.heads, shape.head_width});
  const auto document_of = [&](const at::Tensor& rows, int64_t document) {
    return rows.narrow(0, document * tokens, tokens).unsqueeze(0).transpose(1, 2);
  };
  std::vector<AttentionSlice> slices;
  std::vector<std::tuple<at::Tensor, at::Tensor>> outputs(static_cast<size_t>(documents));
  for (int64_t document = 0; document < documents; ++document) {
    const Range rows{document * tokens, (document + 1) * tokens};
    slices.push_back({static_cast<int32_t>(document), 0, 0, rows, rows, 0});
  }
  const auto torch_forward = [&] {
    for (int64_t document = 0; document < documents; ++document) {
      outputs[static_cast<size_t>(document)] = at::_scaled_dot_product_flash_attention_for_cpu(
          document_of(q, document), document_of(k, document), document_of(v, document), 0.0, true);
    }
  };
  const auto torch_backward = [&] {
    for (int64_t document = 0; document < documents; ++document) {
      const auto& [o, lse] = outputs[static_cast<size_t>(document)];
      at::_scaled_dot_product_flash_attention_for_cpu_backward(
          document_of(d_o, document), document_of(q, document), document_of(k, document),
          document_of(v, document), o, lse, 0.0, true);
    }
  };
  const at::Tensor o = at::zeros(q.sizes());
  const at::Tensor lse = at::zeros({total, shape.heads});
  const at::Tensor delta = at::zeros({total, shape.heads});
  RowStore queries;
  queries.add({0, total}, {q, o, lse});
  RowStore keys;
  keys.add({0, total}, {k, v});
  const auto own_forward = [&] {
    o.zero_();
    lse.fill_(-std::numeric_limits<double>::infinity());
    attention_forward(shape, slices, queries, keys);
  };
  const auto own_backward = [&] {
    attention_delta<float>(shape, total, o.data_ptr<float>(), d_o.data_ptr<float>(),
                           delta.data_ptr<float>());
    RowStore inputs;
    inputs.add({0, total}, {q, d_o, lse, delta, at::zeros(q.sizes())});
    RowStore key_inputs;
    key_inputs.add({0, total}, {k, v, at::zeros(k.sizes()), at::zeros(k.sizes())});
    attention_backward(shape, slices, inputs, key_inputs);
  };
  const double flops = 2.0 * static_cast<double>(documents * tokens * (tokens + 1)) *
                       static_cast<double>(shape.query_row_size());
  std::printf("%4ld x %5ld", documents, tokens);
  print("forward", compare(torch_forward, own_forward), flops);
  print("backward", compare(torch_backward, own_backward), 2.5 * flops);
  std::printf("\n");
  std::fflush(stdout);
}

int run(int argc, char** argv) {
  const auto argument = [&](int idx, int64_t otherwise) {
    return argc > idx ? std::stol(argv[idx]) : otherwise;
  };
  at::set_num_threads(static_cast<int>(argument(1, 1)));
  AttentionShape shape;
  shape.heads = argument(2, 4);
  shape.key_heads = argument(3, 4);
  shape.head_width = argument(4, 64);
  shape.scale = 1 / std::sqrt(static_cast<double>(shape.head_width));
  for (const int64_t tokens : {1, 16, 64, 128, 256, 512, 1024}) bench(shape, 4096 / tokens, tokens);
  for (const int64_t tokens : {4096, 8192}) bench(shape, 1, tokens);
  return 0;
}

}  // namespace
}  // namespace longspan

int main(int argc, char** argv) {
  return longspan::run(argc, argv);
}
