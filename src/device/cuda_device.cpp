#include <ATen/Context.h>
#include <ATen/ops/empty.h>
#include <c10/cuda/CUDACachingAllocator.h>
#include <c10/cuda/CUDAFunctions.h>
#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>
#include <cuda_runtime_api.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <mutex>

#include "base/check.h"
#include "device/cuda_memory.h"
#include "device/device.h"
#include "device/process_device.h"

namespace longspan {

int visible_gpus() {
  return c10::cuda::device_count();
}

GpuInfo gpu_info(int gpu) {
  cudaDeviceProp properties{};
  const cudaError_t error = cudaGetDeviceProperties(&properties, gpu);
  LONGSPAN_CHECK(error == cudaSuccess, "GPU ", gpu, ": ", cudaGetErrorString(error));
  return {.name = properties.name,
          .memory_bytes = static_cast<int64_t>(properties.totalGlobalMem),
          .multiprocessors = properties.multiProcessorCount,
          .major = properties.major,
          .minor = properties.minor};
}

std::string describe_device(at::Device device) {
  if (device.is_cpu()) return "CPU";
  const GpuInfo info = gpu_info(device.index());
  return text(info.name, ", ", info.memory_bytes >> 30, " GiB, ", info.multiprocessors,
              " multiprocessors (GPU ", static_cast<int>(device.index()), " of ", visible_gpus(),
              ")");
}

at::Device device_from_name(const std::string& name) {
  if (name == "cpu") return at::kCPU;
  LONGSPAN_CHECK(name == "cuda", "device ", name);
  if (visible_gpus() == 0) {
    throw UserError(
        "layout.device is \"cuda\", but no GPU is visible: look at nvidia-smi and "
        "CUDA_VISIBLE_DEVICES, or set layout.device = \"cpu\"");
  }
  return {at::kCUDA, 0};
}

at::Device device_of_rank(at::Device device, int rank) {
  if (device.is_cpu()) return device;
  if (const auto own = gpu_of_this_process()) return *own;
  return {at::kCUDA, static_cast<c10::DeviceIndex>(rank % visible_gpus())};
}

int devices_of_ranks(at::Device device, int ranks) {
  return device.is_cpu() ? 1 : std::min(ranks, visible_gpus());
}

namespace {

// Sums over ranks read the memory of all of them, and so do copies.
void let_gpu_read(int reader, int owner) {
  int possible = 0;
  const cudaError_t asked = cudaDeviceCanAccessPeer(&possible, reader, owner);
  if (asked != cudaSuccess || possible == 0) {
    throw UserError(text("GPU ", reader, " cannot read the memory of GPU ", owner,
                         ", so ranks of one process cannot share them: set CUDA_VISIBLE_DEVICES to "
                         "GPUs that are linked, or to one"));
  }
  const c10::cuda::CUDAGuard on(static_cast<c10::DeviceIndex>(reader));
  const cudaError_t enabled = cudaDeviceEnablePeerAccess(owner, 0);
  if (enabled == cudaErrorPeerAccessAlreadyEnabled) {
    cudaGetLastError();  // libtorch was first
  } else {
    LONGSPAN_CHECK(enabled == cudaSuccess, "peer access: ", cudaGetErrorString(enabled));
  }
  cudaMemPool_t pool = nullptr;  // of messages kept back
  const cudaMemAccessDesc access{{cudaMemLocationTypeDevice, reader},
                                 cudaMemAccessFlagsProtReadWrite};
  LONGSPAN_CHECK(cudaDeviceGetDefaultMemPool(&pool, owner) == cudaSuccess &&
                     cudaMemPoolSetAccess(pool, &access, 1) == cudaSuccess,
                 "GPU ", reader, " gets no access to the memory pool of GPU ", owner);
}

void let_all_gpus_read() {
  for (int reader = 0; reader < visible_gpus(); ++reader) {
    for (int owner = 0; owner < visible_gpus(); ++owner) {
      if (owner != reader) let_gpu_read(reader, owner);
    }
  }
}

}  // namespace

struct DeviceThread::Before {
  c10::cuda::CUDAStream stream;
};

DeviceThread::DeviceThread(at::Device device) {
  if (device.is_cpu()) return;
  at::globalContext().lazyInitDevice(at::kCUDA);
  static std::once_flag once;
  if (!gpu_of_this_process()) std::call_once(once, let_all_gpus_read);
  c10::cuda::set_device(device.index());
  before_ = std::make_unique<Before>(Before{c10::cuda::getCurrentCUDAStream(device.index())});
  c10::cuda::setCurrentCUDAStream(
      c10::cuda::getStreamFromPool(/*isHighPriority=*/false, device.index()));
}

DeviceThread::~DeviceThread() {
  if (before_) c10::cuda::setCurrentCUDAStream(before_->stream);
}

void set_deterministic(bool deterministic) {
  at::globalContext().setDeterministicAlgorithms(deterministic, /*warn_only=*/false);
  if (!deterministic) return;
  // cuBLAS reads it when its first handle is made; without it, work space that streams share may
  // change the order of sums.
  setenv("CUBLAS_WORKSPACE_CONFIG", ":4096:8", /*overwrite=*/0);
  at::globalContext().setDeterministicFillUninitializedMemory(false);
}

std::shared_ptr<DeviceMemory> device_memory(at::Device device) {
  return device.is_cpu() ? nullptr : cuda_memory();
}

void finish_work(at::Device device) {
  if (!device.is_cpu()) c10::cuda::getCurrentCUDAStream(device.index()).synchronize();
}

int64_t device_bytes_peak(at::Device device) {
  if (device.is_cpu()) return 0;
  using c10::CachingAllocator::StatType;
  const auto stats = c10::cuda::CUDACachingAllocator::getDeviceStats(device.index());
  return stats.allocated_bytes[static_cast<size_t>(StatType::AGGREGATE)].peak;
}

DeviceReserve device_reserve(at::Device device) {
  if (device.is_cpu()) return {};
  using c10::CachingAllocator::StatType;
  const auto stats = c10::cuda::CUDACachingAllocator::getDeviceStats(device.index());
  constexpr auto kAll = static_cast<size_t>(StatType::AGGREGATE);
  return {stats.reserved_bytes[kAll].peak, stats.segment[kAll].allocated};
}

at::Tensor upload_bytes(std::span<const std::byte> bytes, at::Device device) {
  auto host_options = at::TensorOptions(at::kByte);
  if (!device.is_cpu()) host_options = host_options.pinned_memory(true);
  at::Tensor host = at::empty({std::ssize(bytes)}, host_options);
  if (!bytes.empty()) std::memcpy(host.mutable_data_ptr(), bytes.data(), bytes.size());
  return device.is_cpu() ? host : host.to(device, /*non_blocking=*/true);
}

}  // namespace longspan
