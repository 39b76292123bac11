// The machines and links that a plan is made for.
//
//   ClusterSpec cluster = cluster_preset("h200_50");      // nodes of 8 H200, 50 GB/s each outside
//   ServerLinks links = server_links(cluster, 1);         // every GPU is a server
//   links.between(0, 9)                                   // the link class that joins two servers
//
// Two link classes, since that is what decides plans: inside a node and between nodes. All figures
// are for one device and one direction. Values; any thread.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace longspan {

struct LinkClass {
  double bytes_per_s = 0;
  double latency_s = 0;           // of a round of exchange, whatever its size
  double message_overhead_s = 0;  // of each message
  bool operator==(const LinkClass&) const = default;
};

struct ClusterSpec {
  std::string name;
  std::string device;  // name of the built-in device profile (device_profile.h)
  int64_t gpus_per_node = 1;
  LinkClass inside_node;
  LinkClass between_nodes;
  bool operator==(const ClusterSpec&) const = default;
};

// UserError that lists the names if `name` is none of them; '-' may stand for '_'.
ClusterSpec cluster_preset(const std::string& name);
std::vector<std::string> cluster_preset_names();

// Links among attention servers.
struct ServerLinks {
  int servers_per_node = 1;
  LinkClass inside_node;
  LinkClass between_nodes;

  bool same_node(int one, int other) const {
    return one / servers_per_node == other / servers_per_node;
  }
  const LinkClass& between(int one, int other) const {
    return same_node(one, other) ? inside_node : between_nodes;
  }
  bool operator==(const ServerLinks&) const = default;
};

// `gpus_per_server` must divide the node's GPUs or be a multiple of them; UserError otherwise.
ServerLinks server_links(const ClusterSpec& cluster, int64_t gpus_per_server);

}  // namespace longspan
