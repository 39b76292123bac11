// Speed of a sparse attention layer on a GPU: index scoring with its top-k over a whole document,
// and attention over selected keys, forward and backward.
//
//   longspan_index_speed --tokens 262144 --pools pools.bin --rows rows.txt > times.json
//   longspan_index_speed --attention --tokens 65536 > times.json
//   longspan_index_speed --ranks 2 --tokens 262144 > times.json
//
// bench/compare_index.py runs the first beside a PyTorch scorer. Inputs are drawn on the GPU with a
// fixed seed, in the order q [T, 32, 128], head weights [T, 32], pool keys [T / 4, 128], so that
// torch draws the same ones; `rows` names the queries whose selected pools go into the file, 512
// int32 each. With --ranks the whole pass over the document runs, planned and exchanged, by as many
// thread ranks on the GPUs in turn; times are of the slowest rank, on the clock of the host; the
// selections of all rows are summed up, so that runs of other numbers of ranks can be compared.
// Otherwise times are seconds of CUDA events around the whole; one line of JSON.
#include <ATen/ATen.h>
#include <ATen/cuda/CUDAEvent.h>
#include <ATen/cuda/CUDAGeneratorImpl.h>
#include <c10/core/GradMode.h>

#include <CLI/CLI.hpp>
#include <chrono>
#include <cstdio>
#include <fstream>
#include <nlohmann/json.hpp>
#include <numeric>

#include "base/check.h"
#include "comm/run_ranks.h"
#include "device/device.h"
#include "sparse_attention/index_pass.h"
#include "sparse_attention/index_plans.h"
#include "sparse_attention/selected_attention.h"

namespace longspan {
namespace {

using Json = nlohmann::json;

const at::Device kGpu{at::kCUDA, 0};
const IndexShape kIndex{.heads = 32,
                        .width = 128,
                        .pool_tokens = 4,
                        .top_pools = 512,
                        .scale = 0.08838834764831845};  // 128 ^ -1/2
const SparseAttentionShape kAttention{
    .heads = 64, .width = 512, .pool_tokens = 4, .scale = 1.0 / 16};

struct Options {
  int64_t tokens = 262144;
  int64_t queries = 4096;  // of attention: the last ones
  int repeats = 2;
  int64_t work_bytes = int64_t{256} << 20;
  bool attention = false;
  int ranks = 0;
  std::string rows;
  std::string pools;
};

template <typename Run>
double seconds_of(const Run& run) {
  at::cuda::CUDAEvent begin(cudaEventDefault);
  at::cuda::CUDAEvent end(cudaEventDefault);
  begin.record();
  run();
  end.record();
  end.synchronize();
  return begin.elapsed_time(end) / 1e3;
}

// Sum of all elements in float64: both sides print it, so that they see that inputs are equal.
double sum_of(const at::Tensor& values) {
  return values.sum(at::kDouble).item<double>();
}

void write_rows(const at::Tensor& lists, const std::string& rows_path, const std::string& path) {
  std::ifstream rows(rows_path);
  std::vector<int64_t> ids;
  for (int64_t row = 0; rows >> row;) ids.push_back(row);
  const at::Tensor picked =
      lists.index_select(0, at::tensor(ids, lists.options().dtype(at::kLong))).cpu().contiguous();
  std::ofstream file(path, std::ios::binary);
  file.write(static_cast<const char*>(picked.const_data_ptr()),
             static_cast<std::streamsize>(picked.nbytes()));
  LONGSPAN_CHECK(file.good(), "cannot write ", path);
}

Json scoring(const Options& options) {
  at::manual_seed(1);
  const auto bf16 = at::TensorOptions(at::kBFloat16).device(kGpu);
  const at::Tensor q = at::randn({options.tokens, kIndex.heads, kIndex.width}, bf16);
  const at::Tensor weights = at::randn({options.tokens, kIndex.heads}, bf16);
  const at::Tensor keys = at::randn({options.tokens / kIndex.pool_tokens, kIndex.width}, bf16);
  const auto ranking = make_pool_ranking(kIndex, bf16, options.work_bytes);
  const PoolLists lists{at::empty({options.tokens, kIndex.top_pools}, bf16.dtype(at::kFloat)),
                        at::empty({options.tokens, kIndex.top_pools}, bf16.dtype(at::kInt))};
  const RankedPools pools{keys, 0};
  const auto run = [&](const Range& rows) {
    const PoolLists some{lists.scores_TB.narrow(0, rows.begin, rows.size()),
                         lists.pools_TB.narrow(0, rows.begin, rows.size())};
    some.scores_TB.fill_(-std::numeric_limits<float>::infinity());
    some.pools_TB.fill_(-1);
    ranking->score({q.narrow(0, rows.begin, rows.size()),
                    weights.narrow(0, rows.begin, rows.size()), some, rows.begin},
                   {&pools, 1});
  };
  run({options.tokens - std::min<int64_t>(options.tokens, 4096), options.tokens});  // warms up
  const int64_t before = device_bytes_peak(kGpu);
  Json times = Json::array();
  for (int repeat = 0; repeat < options.repeats; ++repeat) {
    times.push_back(seconds_of([&] { run({0, options.tokens}); }));
  }
  if (!options.pools.empty()) write_rows(lists.pools_TB, options.rows, options.pools);
  return {{"tokens", options.tokens},
          {"seconds", times},
          {"work_bytes", options.work_bytes},
          {"bytes_at_peak_beyond_warm_up", device_bytes_peak(kGpu) - before},
          {"sums", {sum_of(q), sum_of(weights), sum_of(keys)}}};
}

// Random distinct pools, ascending: the worst for a cache.
at::Tensor random_pools(int64_t queries, int64_t visible) {
  const at::Tensor values =
      at::rand({queries, visible}, at::TensorOptions(at::kFloat).device(kGpu));
  const at::Tensor pools = std::get<1>(values.topk(kIndex.top_pools, 1));
  return std::get<0>(pools.sort(1)).to(at::kInt).contiguous();
}

Json attention(const Options& options) {
  at::manual_seed(1);
  const auto bf16 = at::TensorOptions(at::kBFloat16).device(kGpu);
  // The document's last queries, as the piece of a second rank.
  const TokenLayout layout = TokenLayout::from_borders(
      {options.tokens}, 1, 2, {0, options.tokens - options.queries, options.tokens});
  const Range piece = layout.piece(0, 1);
  const at::Tensor q = at::randn({options.queries, kAttention.heads, kAttention.width}, bf16);
  const at::Tensor d_o = at::randn_like(q);
  const at::Tensor c = at::randn({options.tokens, kAttention.width}, bf16);
  const at::Tensor sum = at::zeros({options.tokens, kAttention.width}, bf16.dtype(at::kFloat));
  const int64_t visible = (options.tokens - options.queries) / kIndex.pool_tokens;
  const at::Tensor pools = random_pools(options.queries, visible);
  RowStore latents;
  latents.add({0, options.tokens}, {c});
  RowStore sums;
  sums.add({0, options.tokens}, {sum});
  SelectedOutput output;
  Json times = {{"forward", Json::array()}, {"backward", Json::array()}};
  for (int repeat = 0; repeat <= options.repeats; ++repeat) {
    const double forward = seconds_of(
        [&] { output = selected_attention(kAttention, layout, piece, q, pools, latents); });
    const double backward = seconds_of([&] {
      selected_attention_backward(kAttention, layout, piece,
                                  {q, pools, output.o_THR, output.lse_TH, d_o}, latents, sums);
    });
    if (repeat == 0) continue;  // warms up
    times["forward"].push_back(forward);
    times["backward"].push_back(backward);
  }
  const double flops = 4.0 * 2051 * 512 * 64 * static_cast<double>(options.queries);
  const auto rate = [&](const char* name, double factor) {
    double least = 1e300;
    for (const Json& time : times[name]) least = std::min(least, time.get<double>());
    return factor * flops / least / 1e12;
  };
  return {{"tokens", options.tokens},
          {"queries", options.queries},
          {"seconds", times},
          {"forward_tflops", rate("forward", 1)},
          {"backward_tflops", rate("backward", 2.5)},
          {"bytes_at_peak", device_bytes_peak(kGpu)}};
}

// The same values whoever draws them: by blocks of lines with seeds of their own.
at::Tensor drawn(const Range& lines, const std::vector<int64_t>& row, uint64_t seed,
                 at::Device device) {
  constexpr int64_t kBlock = 4096;
  LONGSPAN_CHECK(lines.begin % kBlock == 0 && lines.end % kBlock == 0, "lines ", lines);
  std::vector<at::Tensor> blocks;
  std::vector<int64_t> sizes = {kBlock};
  sizes.insert(sizes.end(), row.begin(), row.end());
  for (int64_t begin = lines.begin; begin < lines.end; begin += kBlock) {
    auto generator = at::cuda::detail::createCUDAGenerator(device.index());
    generator.set_current_seed(seed + static_cast<uint64_t>(begin));
    blocks.push_back(at::randn(sizes, generator, at::TensorOptions(at::kBFloat16).device(device)));
  }
  return at::cat(blocks);
}

// One rank's part of sharded(); returns the sum of its selected pools' numbers.
double pass_of_rank(const Options& options, const TokenLayout& layout, const AttentionPlan& plan,
                    Communicator& comm, std::vector<double>* seconds) {
  const at::Device device = device_of_rank(kGpu, comm.rank());
  const DeviceThread on(device);
  const PoolAxis axis(layout, kIndex.pool_tokens);
  const Range piece = layout.piece(0, comm.rank());
  const at::Tensor q = drawn(piece, {kIndex.heads, kIndex.width}, 1, device);
  const at::Tensor weights = drawn(piece, {kIndex.heads}, 2, device);
  RowStore keys;
  keys.add(axis.pools(piece), {drawn(axis.pools(piece), {kIndex.width}, 3, device)});
  at::Tensor selected;
  for (int repeat = 0; repeat <= options.repeats; ++repeat) {
    finish_work(device);
    comm.barrier("before a repeat");
    const auto begin = std::chrono::steady_clock::now();
    IndexPass pass(kIndex, plan, axis, layout, comm,
                   {.work_bytes = options.work_bytes, .op = "index"});
    selected = pass.run(q, weights, keys);
    finish_work(device);
    comm.barrier("after a repeat");
    const std::chrono::duration<double> time = std::chrono::steady_clock::now() - begin;
    if (repeat > 0 && comm.rank() == 0) seconds->push_back(time.count());
  }
  return sum_of(selected);
}

Json sharded(const Options& options) {
  const TokenLayout layout = TokenLayout::make(
      {options.tokens}, {.shares = std::vector<double>(static_cast<size_t>(options.ranks), 1)});
  const auto plan = planned_index_scoring(
      kIndex, {.element_bytes = 2, .flops_per_s = 450e12, .link_bytes_per_s = 200e9})(layout, 0);
  Json tasks = Json::array();
  for (const ServerPlan& server : plan->servers) tasks.push_back(server.tasks.size());
  std::vector<double> seconds;
  std::vector<double> sums(static_cast<size_t>(options.ranks));
  run_ranks(options.ranks, {.device_memory = device_memory(kGpu)}, [&](Communicator& comm) {
    sums[static_cast<size_t>(comm.rank())] = pass_of_rank(options, layout, *plan, comm, &seconds);
  });
  return {{"tokens", options.tokens},
          {"ranks", options.ranks},
          {"gpus", devices_of_ranks(kGpu, options.ranks)},
          {"seconds", seconds},
          {"tasks", tasks},
          {"sum_of_pools", std::accumulate(sums.begin(), sums.end(), 0.0)}};
}

void run(int argc, char** argv) {
  Options options;
  CLI::App app("Speed of index scoring and sparse attention on a GPU.");
  app.add_option("--tokens", options.tokens, "length of the document")->check(CLI::PositiveNumber);
  app.add_option("--queries", options.queries, "queries of --attention, the document's last");
  app.add_option("--repeats", options.repeats, "timed runs")->check(CLI::PositiveNumber);
  app.add_option("--work-bytes", options.work_bytes, "bound of the scoring buffer");
  app.add_flag("--attention", options.attention, "attention instead of scoring");
  app.add_option("--ranks", options.ranks, "thread ranks that share the pass");
  app.add_option("--rows", options.rows, "file with the numbers of queries to write");
  app.add_option("--pools", options.pools, "file that takes their selected pools");
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    std::exit(app.exit(error));
  }
  const c10::NoGradGuard no_grad;
  const DeviceThread on(kGpu);
  const Json result = options.ranks > 0   ? sharded(options)
                      : options.attention ? attention(options)
                                          : scoring(options);
  std::printf("%s\n", result.dump().c_str());
  std::fflush(stdout);
}

}  // namespace
}  // namespace longspan

int main(int argc, char** argv) {
  try {
    longspan::run(argc, argv);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "longspan_index_speed: %s\n", error.what());
    std::_Exit(1);
  }
  // libtorch's teardown after main may abort where a GPU was used (docs/gpu.md).
  std::_Exit(0);
}
