// How fast one device runs the parts of a hybrid's layers: measured rates, beside the device
// profile of attention and matrix products.
//
//   const std::optional<PartRates> rates = part_rates("h200");
//   rates->index_scoring.forward.seconds(flops, bytes)
//
// A part takes the longer of its FLOPs at one rate and its bytes at another; a rate of 0 binds
// nothing. FLOPs and bytes are those of spec/part_work.h, so a rate means what the engine reached
// by that count, not the machine's peak. Values; pure; any thread.
#pragma once

#include <algorithm>
#include <optional>
#include <string>
#include <string_view>

namespace longspan {

struct PassRate {
  double flops_per_s = 0;
  double bytes_per_s = 0;

  double seconds(double flops, double bytes) const {
    const double compute_s = flops_per_s > 0 ? flops / flops_per_s : 0;
    const double memory_s = bytes_per_s > 0 ? bytes / bytes_per_s : 0;
    return std::max(compute_s, memory_s);
  }
};

struct BothRates {
  PassRate forward;
  PassRate backward;
};

struct PartRates {
  std::string source;
  BothRates linear_attention;
  BothRates index_scoring;
  BothRates sparse_attention;
  BothRates streams;
  BothRates router;
  BothRates experts;
};

// One H200, bfloat16, the released widths (docs/gpu.md, docs/hybrids.md):
//   linear attention   8,192 tokens, 64 heads of 128: 2.6 ms forward, 9.6 ms backward
//   index scoring      262,144 tokens, 32 heads of 128, best 512 of the pools of 4 tokens: 155 ms,
//                      a second run 167 ms: 438 T, the mean of both
//   sparse attention   8,192 queries, 64 heads on 2,048 latents of 512: 6.63 ms, 43.5 ms
//   streams            16,384 tokens, 4 x 4,096, both sites' read and write: 2 x 0.69, 2 x 1.49 ms
//   router             16,384 tokens, best 8 of 288: 0.15 ms, 0.59 ms
//   experts            16,384 tokens, 8 of 16 chosen, 4,096 x 2,048: 11.8 ms, 31.0 ms, at most
//                      65,536 tokens times experts at once
// None for a device that has not been measured.
inline std::optional<PartRates> part_rates(std::string_view device) {
  if (device != "h200") return std::nullopt;
  constexpr double kMemory = 4.3e12;  // of element-wise kernels
  const auto compute = [](double flops_per_s) { return PassRate{flops_per_s, kMemory}; };
  return PartRates{
      .source = "measured on one H200, bfloat16, released widths",
      .linear_attention = {compute(36e12), compute(30e12)},
      .index_scoring = {compute(438e12), {}},
      .sparse_attention = {{332e12, 0}, {127e12, 0}},  // rows are fetched from caches, too
      .streams = {{0, 2.7e12}, {0, 2.4e12}},
      .router = {compute(258e12), compute(131e12)},
      .experts = {compute(561e12), compute(638e12)}};
}

}  // namespace longspan
