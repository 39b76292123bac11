#include <CLI/CLI.hpp>

#include <algorithm>
#include <iostream>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>

#include "base/error.h"
#include "device/device.h"
#include "formats/atomic_file.h"
#include "formats/json.h"
#include "observe/build_info.h"
#include "observe/console.h"
#include "observe/machine.h"
#include "option_checks.h"
#include "profile/measure_profile.h"
#include "verbs.h"

namespace longspan {
namespace {

// What is not given has the default of the device.
struct ProfileArguments {
  std::string device = "cpu";
  std::optional<int> threads;
  std::optional<int> repeats;
  std::optional<int64_t> query_heads;
  std::optional<int64_t> key_heads;
  std::optional<int64_t> head_width;
  bool deterministic = false;
  int64_t max_queries = 0;
  int64_t max_keys = 0;
  std::string out = "profile.json";
};

// The counts of an axis up to a limit; 0: all of them.
void limit(std::vector<int64_t>& axis, int64_t most) {
  if (most > 0) std::erase_if(axis, [&](int64_t rows) { return rows > most; });
}

at::Device chosen_device(const ProfileArguments& arguments) {
  if (arguments.device == "cpu") {
    if (!arguments.deterministic) return at::kCPU;
    throw UserError("--deterministic is for --device cuda: on CPU bits always repeat");
  }
  if (!kBuiltWithCuda) {
    throw UserError(
        "--device cuda needs a build with CUDA: configure with -DLONGSPAN_CUDA=ON, or take "
        "--device cpu");
  }
  if (visible_gpus() == 0) {
    throw UserError(
        "--device cuda: no GPU is visible; look at nvidia-smi and CUDA_VISIBLE_DEVICES, or take "
        "--device cpu");
  }
  if (arguments.threads) {
    throw UserError("--threads is for --device cpu: on a GPU one thread queues the work");
  }
  return {at::kCUDA, 0};
}

ProfileOptions chosen_options(const ProfileArguments& arguments) {
  ProfileOptions options = profile_options(chosen_device(arguments));
  options.threads = arguments.threads.value_or(options.threads);
  options.repeats = arguments.repeats.value_or(options.repeats);
  options.heads.query_heads = arguments.query_heads.value_or(options.heads.query_heads);
  options.heads.key_heads = arguments.key_heads.value_or(options.heads.key_heads);
  options.heads.head_width = arguments.head_width.value_or(options.heads.head_width);
  options.deterministic = arguments.deterministic;
  return options;
}

int profile(const ProfileArguments& arguments) {
  ProfileOptions options = chosen_options(arguments);
  AtomicFile file(arguments.out);  // a place that cannot be written is found before the measuring
  limit(options.query_rows, arguments.max_queries);
  limit(options.key_rows, arguments.max_keys);
  std::unique_ptr<Progress> progress;
  options.progress = [&](int64_t done, int64_t total) {
    if (!progress) {
      progress = std::make_unique<Progress>(std::cerr, is_terminal(2), "profile", total, "points");
    }
    progress->update(done);
  };
  DeviceProfile measured = measure_profile(options);
  progress.reset();
  measured.versions["longspan"] = LONGSPAN_VERSION " " + std::string(build_commit());
  file.write(to_json(measured).dump(2) + "\n");
  file.publish();
  std::cout << describe_profile(measured) << "written to " << arguments.out << std::endl;
  return 0;
}

}  // namespace

void add_profile(CLI::App& app, VerbRunner& run) {
  CLI::App* verb =
      app.add_subcommand("profile", "Measure this machine's attention kernels and links");
  auto arguments = std::make_shared<ProfileArguments>();
  verb->add_option("--out", arguments->out, "The JSON file to write (profile.json)");
  verb->add_option("--device", arguments->device, "cpu or cuda: where attention is timed (cpu)")
      ->check(CLI::IsMember({"cpu", "cuda"}));
  verb->add_option("--threads", arguments->threads, "Threads of one rank, on CPU (1)")
      ->check(whole_number(1, 16 * usable_threads()));
  verb->add_option("--repeats", arguments->repeats, "Repeats of each measurement (5)")
      ->check(whole_number(1, 10000));
  verb->add_option("--query-heads", arguments->query_heads, "Query heads (4; on a GPU 16)")
      ->check(whole_number(1, 1024));
  verb->add_option("--key-heads", arguments->key_heads, "Key and value heads (2; on a GPU 4)")
      ->check(whole_number(1, 1024));
  verb->add_option("--head-width", arguments->head_width, "Width of a head (64; on a GPU 128)")
      ->check(whole_number(1, 1024));
  verb->add_flag("--deterministic", arguments->deterministic,
                 "On a GPU: the kernels of runs with run.deterministic");
  verb->add_option("--max-queries", arguments->max_queries, "Measure no task with more queries")
      ->check(whole_number(1));
  verb->add_option("--max-keys", arguments->max_keys, "Measure no task with more keys")
      ->check(whole_number(1));
  verb->callback([arguments, &run] { run = [arguments] { return profile(*arguments); }; });
}

}  // namespace longspan
