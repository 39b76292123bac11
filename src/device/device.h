// The device that a run computes on: which there are, and what a rank's thread does before it uses
// one.
//
// Why a folder: a build with CUDA also runs on machines without a GPU, and a build without CUDA
// must not name a CUDA header. Everything that differs between the two stands here, in a file for
// each; all above asks for tensors on `at::Device` and does not care.
//
//   if (visible_gpus() > 0) ...
//   const DeviceThread on(device);                  // in each rank's thread, for its whole life
//   at::Tensor ids = upload<int32_t>(tokens, device);
//   run_ranks(4, {.device_memory = device_memory(device)}, ...);
//
// Queues: a rank's thread queues work on a stream of its own and copies between ranks on a second
// one. The host waits in finish_work(), and wherever a value is read back, nowhere else.
#pragma once

#include <ATen/core/Tensor.h>

#include <memory>
#include <span>
#include <string>
#include <type_traits>
#include <vector>

#include "comm/device_memory.h"

namespace longspan {

inline constexpr bool kBuiltWithCuda = LONGSPAN_CUDA != 0;

// GPUs that this process may use; 0 without CUDA in the build or without a driver.
int visible_gpus();

struct GpuInfo {
  std::string name;
  int64_t memory_bytes = 0;
  int multiprocessors = 0;
  int major = 0;  // compute capability
  int minor = 0;
};
GpuInfo gpu_info(int gpu);
// For people: "CPU", or name, memory and number of the GPU.
std::string describe_device(at::Device device);

// "cpu" or "cuda" (the first GPU), as the configuration says; UserError if there is no such device
// here.
at::Device device_from_name(const std::string& name);

// The device of one of the ranks of this process: its GPUs are dealt out in turn, unless the
// process has one of its own (process_device.h). `device` says which kind.
at::Device device_of_rank(at::Device device, int rank);
// How many devices that many ranks are on.
int devices_of_ranks(at::Device device, int ranks);

// Sums, states and gradients of a run: float32, or float64 in a float64 run.
inline at::ScalarType accumulate_type(at::ScalarType compute) {
  return compute == at::kDouble ? at::kDouble : at::kFloat;
}

// While it lives the calling thread's work goes to queues of its own on that device. UserError if
// the GPUs of this machine cannot read each other's memory.
class DeviceThread {
 public:
  explicit DeviceThread(at::Device device);
  ~DeviceThread();
  DeviceThread(const DeviceThread&) = delete;
  DeviceThread& operator=(const DeviceThread&) = delete;

 private:
  struct Before;
  std::unique_ptr<Before> before_;
};

// For the whole process, before any work: the same inputs give the same bits on a GPU too, where
// libraries have a choice. Costs time in the backward of attention. On CPU it changes nothing.
void set_deterministic(bool deterministic);

// What ranks need to exchange memory of the device; null for the CPU.
std::shared_ptr<DeviceMemory> device_memory(at::Device device);

// Waits until everything that the calling thread has queued is done.
void finish_work(at::Device device);

// Most bytes that tensors held on the device at once; 0 for the CPU.
int64_t device_bytes_peak(at::Device device);

// Memory that the allocator of libtorch has taken from a device and keeps for later tensors; 0 for
// the CPU. Asking a driver for memory may make all queues wait: a run does it in its first steps.
struct DeviceReserve {
  int64_t bytes_peak = 0;
  int64_t allocations = 0;  // since the process began
};
DeviceReserve device_reserve(at::Device device);

// A host array on the device; the host does not wait for the copy, and may change the array at
// once.
at::Tensor upload_bytes(std::span<const std::byte> bytes, at::Device device);

template <typename T>
at::Tensor upload(std::span<const T> values, at::Device device) {
  const at::Tensor bytes = upload_bytes(std::as_bytes(values), device);
  return bytes.view(c10::CppTypeToScalarType<T>::value);
}

}  // namespace longspan
