#include "base/error.h"
#include "device/device.h"
#include "device/nccl_link.h"
#include "device/process_device.h"

namespace longspan {

namespace {

std::optional<int> number_on_host;

}  // namespace

void one_gpu_for_this_process(int local_rank) {
  number_on_host = local_rank;
}

std::optional<at::Device> gpu_of_this_process() {
  if (!number_on_host) return std::nullopt;
  const int gpus = visible_gpus();
  // Launchers that show each process its own GPU only leave no choice.
  if (gpus == 1) return at::Device(at::kCUDA, 0);
  if (*number_on_host >= gpus) {
    throw UserError(text("environment: LOCAL_RANK=", *number_on_host, ", but this process sees ",
                         gpus, " GPUs: start one process for each GPU (torchrun --nproc-per-node=",
                         gpus, "), or look at CUDA_VISIBLE_DEVICES"));
  }
  return at::Device(at::kCUDA, static_cast<c10::DeviceIndex>(*number_on_host));
}

std::shared_ptr<DeviceLink> device_link(Communicator& comm, at::Device device) {
  return device.is_cpu() ? nullptr : nccl_link(comm, device);
}

std::string device_transport(at::Device device) {
  return device.is_cpu() ? "tcp" : "nccl";
}

}  // namespace longspan
