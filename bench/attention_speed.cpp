// Speed of core attention on a GPU for documents of given lengths, all in one launch.
//
//   longspan_attention_speed --documents 8192,8192,8192,8192
//   longspan_attention_speed --documents 11745,11021,7409,2000 --documents 65536 --sums
//
// For each list one line of JSON: medians of forward and backward in milliseconds of the device, a
// launch with all its copies and sums, and the rate over visible pairs. With --sums results are
// float32 sums, as of rows that several ranks compute; without it each row has one part. 16 query
// and 4 key heads of 128 in bfloat16, unless told otherwise.
#include <c10/core/GradMode.h>

#include <CLI/CLI.hpp>
#include <cstdio>
#include <nlohmann/json.hpp>
#include <sstream>

#include "device/device.h"
#include "profile/launch_times.h"

namespace longspan {
namespace {

const at::Device kGpu{at::kCUDA, 0};

struct Options {
  std::vector<std::string> documents;
  TimedHeads heads{.query_heads = 16, .key_heads = 4, .head_width = 128};
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

nlohmann::json measured(const Options& options, const std::vector<int64_t>& documents) {
  TimedLaunch launch{.heads = options.heads, .one_part = !options.sums};
  double pairs = 0;
  for (const int64_t length : documents) {
    const Range whole{launch.query_rows, launch.query_rows + length};
    launch.slices.push_back({static_cast<int32_t>(launch.slices.size()), 0, 0, whole, whole, 0});
    launch.query_rows = launch.key_rows = whole.end;
    pairs += static_cast<double>(length) * static_cast<double>(length + 1) / 2;
  }
  const LaunchTimes times = time_launch(launch, {.repeats = options.repeats, .device = kGpu});
  // Two products forward, five backward, of 2 FLOPs a pair and column.
  const double flops =
      4 * pairs * static_cast<double>(options.heads.query_heads * options.heads.head_width);
  return {{"documents", documents.size()},
          {"rows", launch.query_rows},
          {"forward_ms", 1e3 * times.forward.median_s},
          {"backward_ms", 1e3 * times.backward.median_s},
          {"forward_tflops", flops / times.forward.median_s * 1e-12},
          {"backward_tflops", 2.5 * flops / times.backward.median_s * 1e-12}};
}

int run(int argc, char** argv) {
  Options options;
  CLI::App app("Speed of core attention on a GPU for documents of given lengths");
  app.add_option("--documents", options.documents, "Lengths, with commas; may be given again")
      ->required();
  app.add_option("--heads", options.heads.query_heads, "Query heads");
  app.add_option("--key-heads", options.heads.key_heads, "Key heads");
  app.add_option("--head-width", options.heads.head_width, "Width of a head");
  app.add_option("--repeats", options.repeats, "Measured launches");
  app.add_flag("--sums", options.sums, "Results are float32 sums");
  app.add_flag("--deterministic", options.deterministic, "As run.deterministic");
  CLI11_PARSE(app, argc, argv);
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
