#include <ATen/Config.h>
#include <ATen/Parallel.h>
#include <ATen/Version.h>
#include <torch/headeronly/version.h>

#include <CLI/CLI.hpp>

#include <filesystem>
#include <fstream>
#include <iostream>

#include "base/error.h"
#include "comm/launch.h"
#include "device/device.h"
#include "observe/build_info.h"
#include "observe/machine.h"
#include "observe/number_format.h"
#include "train/measure_peak.h"
#include "verbs.h"

namespace longspan {
namespace {

void line(const char* name, const std::string& value) {
  std::cout << std::left;
  std::cout.width(14);
  std::cout << name << value << "\n";
}

// The launcher's variables, or what is wrong with them.
int report_launch() {
  try {
    const LaunchInfo launch = read_launch(process_environment());
#ifdef LONGSPAN_MPI
    check_launch(launch, true);
#else
    check_launch(launch, false);
#endif
    line("launcher", launch.description);
    return 0;
  } catch (const UserError& error) {
    line("launcher", text("PROBLEM: ", error.what()));
    return 1;
  }
}

int check_disk() {
  std::error_code error;
  const auto space = std::filesystem::space(".", error);
  if (error) {
    line("disk",
         text("PROBLEM: cannot read the free space of the current folder: ", error.message()));
    return 1;
  }
  line("disk",
       text(short_bytes(static_cast<double>(space.available)), " free in the current folder"));
  return 0;
}

int doctor() {
  const MachineInfo machine = describe_machine();
  line("longspan", text(LONGSPAN_VERSION, " ", build_commit(), ", libtorch ", TORCH_VERSION));
  line("machine", text(machine.host, ", ", machine.system));
  line("processor", text(machine.cpu, ", ", machine.threads, " threads usable; libtorch runs ",
                         at::get_cpu_capability(), " code"));
  line("memory", text(short_bytes(static_cast<double>(machine.memory_bytes)), " for this process, ",
                      short_bytes(static_cast<double>(resident_bytes())), " in use"));
  int problems = check_disk();
  at::set_num_threads(static_cast<int>(machine.threads));
  line("peak", measure_peak_flops(at::kFloat).description);
  const int gpus = visible_gpus();
  for (int gpu = 0; gpu < gpus; ++gpu) {
    line("accelerator", describe_device({at::kCUDA, static_cast<at::DeviceIndex>(gpu)}));
  }
  if (gpus == 0) {
    line("accelerator", kBuiltWithCuda ? "no GPU is visible: runs go to the CPU"
                                       : "none used: this build runs on CPU");
  }
#ifdef LONGSPAN_MPI
  line("transports", "thread (ranks of one process), mpi (mpirun -n N longspan train ...)");
#else
  line("transports", "thread (ranks of one process); built without MPI");
#endif
  line("", kBuiltWithCuda ? "nccl (torchrun, a process for each GPU), tcp (torchrun, CPU ranks)"
                          : "tcp (torchrun, CPU ranks)");
  line("attention", "CPU: blocked kernel, float32 and float64, any head width");
  if (kBuiltWithCuda) {
    line("", "GPU: cuDNN and FlashAttention-2 of libtorch in bfloat16, else a plain kernel");
  }
  problems += report_launch();
  std::cout << (problems == 0 ? "no problem found" : text(problems, " problem(s) found"))
            << std::endl;
  return problems == 0 ? 0 : 2;
}

}  // namespace

void add_doctor(CLI::App& app, VerbRunner& run) {
  CLI::App* verb =
      app.add_subcommand("doctor", "What this machine has, what longspan will use, what is wrong");
  verb->callback([&run] { run = doctor; });
}

}  // namespace longspan
