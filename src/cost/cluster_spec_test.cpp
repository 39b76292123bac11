#include "cost/cluster_spec.h"

#include <gtest/gtest.h>

#include "base/error.h"
#include "cost/device_profile.h"

namespace longspan {
namespace {

TEST(ClusterSpec, EveryPresetHasADeviceAndPositiveLinks) {
  for (const std::string& name : cluster_preset_names()) {
    const ClusterSpec cluster = cluster_preset(name);
    EXPECT_EQ(cluster.name, name);
    EXPECT_EQ(device_profile(cluster.device).name, cluster.device);
    for (const LinkClass& link : {cluster.inside_node, cluster.between_nodes}) {
      EXPECT_GT(link.bytes_per_s, 1e9);
      EXPECT_GT(link.latency_s, 0);
      EXPECT_GT(link.message_overhead_s, 0);
    }
    EXPECT_GE(cluster.inside_node.bytes_per_s, cluster.between_nodes.bytes_per_s);
  }
}

TEST(ClusterSpec, PublishedBandwidths) {
  EXPECT_EQ(cluster_preset("h200_50").between_nodes.bytes_per_s, 50e9);
  EXPECT_EQ(cluster_preset("h200-40").between_nodes.bytes_per_s, 40e9);
  EXPECT_EQ(cluster_preset("h200-40").inside_node.bytes_per_s, 386e9);
  EXPECT_EQ(cluster_preset("h200_50").gpus_per_node, 8);
}

TEST(ClusterSpec, AnUnknownNameListsTheKnownOnes) {
  try {
    cluster_preset("h100");
    FAIL();
  } catch (const UserError& error) {
    const std::string message = error.what();
    EXPECT_NE(message.find("\"h100\""), std::string::npos) << message;
    for (const std::string& name : cluster_preset_names()) {
      EXPECT_NE(message.find(name), std::string::npos) << message;
    }
  }
}

TEST(ServerLinks, NodesHoldWholeServers) {
  const ClusterSpec cluster = cluster_preset("h200_50");
  const ServerLinks gpus = server_links(cluster, 1);
  EXPECT_EQ(gpus.servers_per_node, 8);
  EXPECT_TRUE(gpus.same_node(0, 7));
  EXPECT_FALSE(gpus.same_node(7, 8));
  EXPECT_EQ(gpus.between(8, 15), cluster.inside_node);
  EXPECT_EQ(gpus.between(0, 9), cluster.between_nodes);
  EXPECT_EQ(server_links(cluster, 4).servers_per_node, 2);
  for (const int64_t gpus_per_server : {8, 16}) {
    const ServerLinks nodes = server_links(cluster, gpus_per_server);
    EXPECT_EQ(nodes.servers_per_node, 1);
    EXPECT_FALSE(nodes.same_node(0, 1));
  }
  for (const int64_t gpus_per_server : {-1, 0, 3, 12}) {
    EXPECT_THROW(server_links(cluster, gpus_per_server), UserError) << gpus_per_server;
  }
}

}  // namespace
}  // namespace longspan
