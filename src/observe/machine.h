// What this machine gives to this process: name, processor, threads and memory, with the limits of
// its control group (containers, Slurm jobs) counted.
//
//   const MachineInfo machine = describe_machine();
//   const int64_t room = memory_limit_bytes();        // less than the machine has, in a container
//   const int64_t peak = peak_resident_bytes();
//
// Reads /proc and /sys; `root` lets tests lay out files of their own. Any thread.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>

namespace longspan {

struct MachineInfo {
  std::string host;
  std::string cpu;
  int64_t threads = 1;       // that this process may use
  int64_t memory_bytes = 0;  // that this process may use
  std::string system;        // kernel name and release
};

MachineInfo describe_machine();

// Memory of this process that is in RAM, now and at most so far.
int64_t resident_bytes();
int64_t peak_resident_bytes();
// Starts the peak anew from the present value; false where the system does not allow it.
bool reset_peak_resident();

// The least of the machine's memory and the limits of the control groups (versions 1 and 2) that
// hold this process.
int64_t memory_limit_bytes(const std::filesystem::path& root = "/");

// Hardware threads allowed by affinity and by the control group's quota, at least 1.
int64_t usable_threads(const std::filesystem::path& root = "/");

}  // namespace longspan
