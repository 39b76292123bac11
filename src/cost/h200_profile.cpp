// One H200 with ATen's varlen FlashAttention-2, bf16, 32 query and 8 key heads of width 128.
//
// The figures, FLOP/s of visible pairs:
//   forward / backward  causal, measured on an H200, one launch:
//     one 16K document 335 / 299 T; one of 64K 344 / 321 T; 16 of 4K 318 / 277 T;
//     64 shards of 128 queries on 32K keys 318 / 150 T; 32 of 1K queries on 64K keys 342 / 285 T
//   forward  published (arXiv 2510.18121, figure 5, read off), H200, shards of 32K packed tokens:
//     16 queries 40 T, 32: 80, 64: 155, 128: 285, 256: 294, 512: 304, 1K: 307, 2K: 309
//   launch   published (DistCA), H100: 30 us for one causal document of 128 tokens
// In charged pairs (whole tiles of 128 x 128) they follow two smooth curves, which fill the grid:
//   forward   345 T * S(q) * m / (m + 105)          S: the published row over its last figure
//   backward  326 T * n / (n + 148) * k / (k + 300)
// with q query rows, k key rows, m the mean number of keys that a tile row walks and n the mean
// number of query rows that a tile column walks (backward stands on the keys and walks queries).
// They are within 3 % of the measured forward figures and within 6 % of the backward ones
// (device_profile_test.cpp). Unmasked rectangles were not measured with this kernel: the same
// curves, with all keys visible. Backward below 128 query rows is charged as 128.
#include <algorithm>
#include <array>

#include "cost/built_in_profiles.h"
#include "layout/token_layout.h"

namespace longspan {
namespace {

constexpr int64_t kTile = kBlockTokens;
constexpr int64_t kLargestRows = 512 * 1024;

struct ShardRate {
  int64_t query_rows;
  double tflops;  // of visible pairs
};
constexpr std::array<ShardRate, 8> kShardRates = {
    {{16, 40}, {32, 80}, {64, 155}, {128, 285}, {256, 294}, {512, 304}, {1024, 307}, {2048, 309}}};

// The published rate of shards of this many queries, in charged pairs, over that of long ones.
double shard_factor(int64_t query_rows) {
  const ShardRate* found = &kShardRates.back();
  for (const ShardRate& rate : kShardRates) {
    if (rate.query_rows == query_rows) found = &rate;
  }
  const double charged = static_cast<double>(std::max(kTile, found->query_rows)) /
                         static_cast<double>(found->query_rows);
  return found->tflops * charged / kShardRates.back().tflops;
}

// A task as the grid sees it: the last query sees the last key (causal), or all see all.
struct GridTask {
  int64_t query_rows = 0;
  int64_t key_rows = 0;
  bool causal = false;

  // Queries that see keys.
  int64_t active_queries() const { return causal ? std::min(query_rows, key_rows) : query_rows; }
  double charged_queries() const { return static_cast<double>(std::max(kTile, active_queries())); }
  double mean_keys() const {
    const auto keys = static_cast<double>(key_rows);
    return causal ? keys - (charged_queries() - static_cast<double>(kTile)) / 2 : keys;
  }
  double mean_queries() const {
    return charged_queries() * mean_keys() / static_cast<double>(key_rows);
  }
};

double saturating(double amount, double half) {
  return amount / (amount + half);
}

double forward_rate(const GridTask& task) {
  return 345e12 * shard_factor(task.active_queries()) * saturating(task.mean_keys(), 105);
}

double backward_rate(const GridTask& task) {
  return 326e12 * saturating(task.mean_queries(), 148) *
         saturating(static_cast<double>(task.key_rows), 300);
}

std::vector<int64_t> powers_of_two(int64_t first) {
  std::vector<int64_t> powers;
  for (int64_t power = first; power <= kLargestRows; power *= 2) powers.push_back(power);
  return powers;
}

RateGrid make_grid(double (*rate)(const GridTask&), int64_t first_query_rows, bool causal) {
  const std::vector<int64_t> query_rows = powers_of_two(first_query_rows);
  const std::vector<int64_t> key_rows = powers_of_two(kTile);
  std::vector<double> rates;
  for (const int64_t queries : query_rows) {
    for (const int64_t keys : key_rows) rates.push_back(rate({queries, keys, causal}));
  }
  return RateGrid(query_rows, key_rows, rates);
}

}  // namespace

DeviceProfile h200_profile() {
  DeviceProfile profile;
  profile.name = "h200";
  profile.source =
      "built in: ATen FlashAttention-2 (varlen, bf16), ten figures measured on an H200 and the "
      "published row of shard lengths (arXiv 2510.18121, figure 5); all other grid points by two "
      "smooth curves through them. Launch overhead from a published H100 figure; overhead per "
      "task, and of backward launches, assumed. One multiprocessor 4.5 TFLOP/s, derived";
  profile.versions = {{"torch", "2.11 (CUDA 13.0)"}};
  profile.shape = {.query_heads = 32, .key_heads = 8, .key_width = 128, .value_width = 128};
  profile.forward = {.causal = make_grid(forward_rate, 16, true),
                     .full = make_grid(forward_rate, 16, false),
                     .task_overhead_s = 0.2e-6,
                     .launch_overhead_s = 25e-6,
                     .row_flops_per_s = 4.5e12};
  // Three kernels to launch (row sums, the pass itself, dQ to bf16).
  profile.backward = {.causal = make_grid(backward_rate, kTile, true),
                      .full = make_grid(backward_rate, kTile, false),
                      .task_overhead_s = 0.2e-6,
                      .launch_overhead_s = 75e-6,
                      .row_flops_per_s = 4.5e12};
  // bf16 product of 8192^3 random numbers, measured at 770 to 800.
  profile.matrix_flops_per_s = 785e12;
  return profile;
}

}  // namespace longspan
