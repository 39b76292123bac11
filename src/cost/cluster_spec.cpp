#include "cost/cluster_spec.h"

#include <algorithm>

#include "base/error.h"

namespace longspan {
namespace {

// Measured between two H200 of one host (copy engines): 386 GB/s one way for large copies, 16 us
// for a flag there and back with the host's submissions, 1 us for each piece of a batch of copies.
constexpr LinkClass kNvlink{.bytes_per_s = 386e9, .latency_s = 16e-6, .message_overhead_s = 1e-6};

// InfiniBand, one adapter for each GPU. The bandwidth is the preset's; latency and message
// overhead are assumed, not measured: twice NVLink's, for a grouped send and receive kernel and
// its work requests.
LinkClass assumed_nic(double bytes_per_s) {
  return {.bytes_per_s = bytes_per_s, .latency_s = 30e-6, .message_overhead_s = 2e-6};
}

// Ranks that are threads of one process, both sending: measured by `longspan profile` on two cores
// that other jobs shared, rounded.
constexpr LinkClass kSharedMemory{
    .bytes_per_s = 2e9, .latency_s = 25e-6, .message_overhead_s = 2e-6};

std::vector<ClusterSpec> presets() {
  return {
      {"h200_50", "h200", 8, kNvlink, assumed_nic(50e9)},
      {"h200_40", "h200", 8, kNvlink, assumed_nic(40e9)},
      // However many ranks there are, they share the one machine: both classes are the same.
      {"laptop", "laptop_cpu", 8, kSharedMemory, kSharedMemory},
  };
}

}  // namespace

std::vector<std::string> cluster_preset_names() {
  std::vector<std::string> names;
  for (const ClusterSpec& preset : presets()) names.push_back(preset.name);
  return names;
}

ClusterSpec cluster_preset(const std::string& name) {
  std::string spelled = name;
  std::replace(spelled.begin(), spelled.end(), '-', '_');
  for (ClusterSpec& preset : presets()) {
    if (preset.name == spelled) return std::move(preset);
  }
  std::string known;
  for (const std::string& other : cluster_preset_names()) {
    known += (known.empty() ? "" : ", ") + other;
  }
  throw UserError(text("unknown cluster \"", name, "\"; choose one of: ", known));
}

ServerLinks server_links(const ClusterSpec& cluster, int64_t gpus_per_server) {
  const int64_t node = cluster.gpus_per_node;
  if (gpus_per_server < 1 || (node % gpus_per_server != 0 && gpus_per_server % node != 0)) {
    throw UserError(text("cluster ", cluster.name, ": a server of ", gpus_per_server,
                         " GPUs does not fit its nodes of ", node,
                         "; take a divisor or a multiple of ", node));
  }
  return {.servers_per_node = static_cast<int>(std::max<int64_t>(1, node / gpus_per_server)),
          .inside_node = cluster.inside_node,
          .between_nodes = cluster.between_nodes};
}

}  // namespace longspan
