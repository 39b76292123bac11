#include <CLI/CLI.hpp>

#include <algorithm>
#include <iostream>
#include <memory>
#include <nlohmann/json.hpp>

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

struct ProfileArguments {
  ProfileOptions options;
  int64_t max_queries = 0;
  int64_t max_keys = 0;
  std::string out = "profile.json";
};

// The counts of an axis up to a limit; 0: all of them.
void limit(std::vector<int64_t>& axis, int64_t most) {
  if (most > 0) std::erase_if(axis, [&](int64_t rows) { return rows > most; });
}

int profile(const ProfileArguments& arguments) {
  AtomicFile file(arguments.out);  // a place that cannot be written is found before the measuring
  ProfileOptions options = arguments.options;
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
      app.add_subcommand("profile", "Measure this machine's attention kernel and links");
  auto arguments = std::make_shared<ProfileArguments>();
  ProfileOptions& options = arguments->options;
  verb->add_option("--out", arguments->out, "The JSON file to write (profile.json)");
  verb->add_option("--threads", options.threads, "Threads of one rank (1)")
      ->check(whole_number(1, 16 * usable_threads()));
  verb->add_option("--repeats", options.repeats, "Repeats of each measurement (5)")
      ->check(whole_number(1, 10000));
  verb->add_option("--query-heads", options.heads.query_heads, "Query heads (4)")
      ->check(whole_number(1, 1024));
  verb->add_option("--key-heads", options.heads.key_heads, "Key and value heads (2)")
      ->check(whole_number(1, 1024));
  verb->add_option("--head-width", options.heads.head_width, "Width of a head (64)")
      ->check(whole_number(1, 1024));
  verb->add_option("--max-queries", arguments->max_queries, "Measure no task with more queries")
      ->check(whole_number(1));
  verb->add_option("--max-keys", arguments->max_keys, "Measure no task with more keys")
      ->check(whole_number(1));
  verb->callback([arguments, &run] { run = [arguments] { return profile(*arguments); }; });
}

}  // namespace longspan
