#include <ATen/ops/empty.h>

#include <cstring>
#include <utility>

#include "base/check.h"
#include "device/device.h"
#include "device/device_timer.h"

namespace longspan {

int visible_gpus() {
  return 0;
}

GpuInfo gpu_info(int gpu) {
  throw InternalError(text("asked for GPU ", gpu, " in a build without CUDA"));
}

std::string describe_device(at::Device) {
  return "CPU";
}

at::Device device_from_name(const std::string& name) {
  if (name == "cpu") return at::kCPU;
  throw UserError(text("the device \"", name,
                       "\" needs a build with CUDA: configure with -DLONGSPAN_CUDA=ON, or set "
                       "layout.device = \"cpu\""));
}

at::Device device_of_rank(at::Device device, int) {
  return device;
}

int devices_of_ranks(at::Device, int) {
  return 1;
}

struct DeviceThread::Before {};

DeviceThread::DeviceThread(at::Device device) {
  LONGSPAN_CHECK(device.is_cpu(), "device ", device.str(), " in a build without CUDA");
}

DeviceThread::~DeviceThread() = default;

void set_deterministic(bool) {}

std::shared_ptr<DeviceMemory> device_memory(at::Device) {
  return nullptr;
}

void finish_work(at::Device) {}

int64_t device_bytes_peak(at::Device) {
  return 0;
}

DeviceReserve device_reserve(at::Device) {
  return {};
}

at::Tensor upload_bytes(std::span<const std::byte> bytes, at::Device) {
  at::Tensor copy = at::empty({std::ssize(bytes)}, at::kByte);
  if (!bytes.empty()) std::memcpy(copy.mutable_data_ptr(), bytes.data(), bytes.size());
  return copy;
}

struct DeviceTimer::Marks {};

DeviceTimer::DeviceTimer(at::Device) {}
DeviceTimer::~DeviceTimer() = default;
DeviceTimer::DeviceTimer(DeviceTimer&&) noexcept = default;

void DeviceTimer::start() {
  started_ = std::chrono::steady_clock::now();
}

void DeviceTimer::stop() {
  seconds_ += std::chrono::duration<double>(std::chrono::steady_clock::now() - started_).count();
}

double DeviceTimer::take_seconds() {
  return std::exchange(seconds_, 0);
}

}  // namespace longspan
