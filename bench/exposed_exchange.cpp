// What exchange costs a training step: the same run four times, on thread ranks of this process's
// GPUs.
//
//   build/cuda/longspan_exposed_exchange run.toml --out FOLDER --steps 8 --layout.ranks=2 ...
//
// The documents must be those of one step: every step repeats it, with weights that stay
// (optimizer.lr is set to 1e-12). "record" writes down what messages bring; "messages" is the run
// as it is; in "signals" one byte travels in place of each message of device memory, and what it
// would have brought is there already; "single stream" copies within the ranks' own work. Exposed
// communication is messages less signals. Keys of the configuration may follow; the runs are in
// FOLDER/record and so on. Prints JSON: medians of the steps behind the warm-up, in seconds.
#include <ATen/Parallel.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <fstream>
#include <iostream>
#include <nlohmann/json.hpp>

#include "ablations.h"
#include "base/narrow.h"
#include "comm/run_ranks.h"
#include "device/device.h"
#include "layers/tensor_memory.h"
#include "observe/build_info.h"
#include "observe/machine.h"
#include "train/kernel_audit.h"
#include "train/run_device.h"
#include "train/trainer.h"

namespace longspan {
namespace {

struct Arguments {
  std::string config;
  std::string out;
  int steps = 8;
  int warm_up = 3;
  std::vector<std::string> overrides;
};

std::vector<double> logged_step_s(const std::string& folder) {
  std::vector<double> seconds;
  std::ifstream log(folder + "/log.jsonl");
  for (std::string line; std::getline(log, line);) {
    const nlohmann::json entry = nlohmann::json::parse(line);
    if (entry.value("kind", "") != "step") continue;
    seconds.push_back(entry.at("time_metrics/end_to_end(s)"));
  }
  return seconds;
}

// The median step of a run in that mode.
double measure(const Arguments& arguments, const std::string& mode,
               std::vector<MessageTape>& tapes) {
  std::vector<std::string> overrides = arguments.overrides;
  overrides.push_back("--optimizer.lr=1e-12");
  overrides.push_back(text("--optimizer.steps=", arguments.steps));
  const Surroundings around{.hardware_threads = usable_threads(), .gpus = visible_gpus()};
  const std::string folder = arguments.out + "/" + mode;
  overrides.push_back("--output.folder=" + folder);
  const RunSetup setup = make_run_setup(load_run_config(arguments.config, overrides, around));
  const RunConfig& config = setup.config();
  set_deterministic(config.run.deterministic);
  const ResumePoint from = find_resume_point(setup);
  const TrainProcess process{.console = &std::cerr,
                             .version = "exposed exchange",
                             .commit = std::string(build_commit()),
                             .peak = {}};
  StepPlanner planner(*setup.train, setup.planner, from.progress.cursor, from.progress.step);
  const at::Device gpu = device_from_name("cuda");
  std::shared_ptr<DeviceMemory> memory = device_memory(gpu);
  if (mode == "single_stream") memory = std::make_shared<SingleStreamMemory>(memory);
  tapes.resize(static_cast<size_t>(config.layout.ranks));
  run_ranks(narrow<int>(config.layout.ranks), {.device_memory = memory}, [&](Communicator& comm) {
    const DeviceThread on(device_of_rank(gpu, comm.rank()));
    at::set_num_threads(narrow<int>(config.layout.threads_per_rank));
    MessageTape& tape = tapes.at(static_cast<size_t>(comm.rank()));
    TapedCommunicator taped(comm, memory, tape, /*replay=*/mode == "signals");
    const bool as_it_is = mode != "record" && mode != "signals";
    train_rank({setup, process, planner, from}, as_it_is ? comm : taped);
  });
  std::vector<double> seconds = logged_step_s(folder);
  if (std::ssize(seconds) <= arguments.warm_up) throw UserError(folder + ": too few steps");
  seconds.erase(seconds.begin(), seconds.begin() + arguments.warm_up);
  std::nth_element(seconds.begin(), seconds.begin() + std::ssize(seconds) / 2, seconds.end());
  return seconds[seconds.size() / 2];
}

int run(int argc, char** argv) {
  Arguments arguments;
  CLI::App app("Exposed communication of a training step");
  app.add_option("config", arguments.config)->required();
  app.add_option("--out", arguments.out)->required();
  app.add_option("--steps", arguments.steps);
  app.add_option("--warm-up", arguments.warm_up);
  app.allow_extras();
  CLI11_PARSE(app, argc, argv);
  arguments.overrides = app.remaining();
  keep_tensor_memory();
  nlohmann::json result;
  std::vector<MessageTape> tapes;  // by rank
  for (const std::string mode : {"record", "messages", "signals", "single_stream"}) {
    result[mode + "_s"] = measure(arguments, mode, tapes);
  }
  const double whole = result["messages_s"];
  const double exposed = whole - result["signals_s"].get<double>();
  result["exposed_s"] = exposed;
  result["exposed_share"] = exposed / whole;
  std::cout << result.dump() << "\n";
  return 0;
}

}  // namespace
}  // namespace longspan

int main(int argc, char** argv) {
  try {
    return longspan::run(argc, argv);
  } catch (const std::exception& error) {
    std::cerr << "longspan_exposed_exchange: " << error.what() << "\n";
    return 2;
  }
}
