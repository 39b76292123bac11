// Measured speed of one device: what the cost model is made of.
//
//   DeviceProfile profile = device_profile("h200");              // built in, marked as such
//   DeviceProfile mine = read_device_profile("profile.json");    // written by `longspan profile`
//   AttentionCost cost(shape, mine.forward, Direction::kForward);
//
// The file is JSON: every key there and no other, but for "link", which a device alone has not.
// Every checkpoint keeps the profile that its plans were made with. Values; any thread.
#pragma once

#include <filesystem>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "cost/attention_cost.h"
#include "cost/cluster_spec.h"
#include "formats/json.h"

namespace longspan {

struct DeviceProfile {
  std::string name;
  std::string source;  // "measured on ..." or where published figures come from
  std::map<std::string, std::string> versions;
  // The attention that was timed. Rates are FLOP/s, so other shapes may use them, but they
  // are exact for this one only.
  AttentionSizes shape;
  PassRates forward;
  PassRates backward;
  double matrix_flops_per_s = 0;  // dense matrix products, of the linear part of a layer
  // How well repeats of a measurement agree: half the width of their middle half over their
  // median, for the worst measurement. 0 for figures that were not measured by longspan.
  double spread = 0;
  // Between ranks of this machine.
  std::optional<LinkClass> link;
  bool operator==(const DeviceProfile&) const = default;
};

Json to_json(const DeviceProfile& profile);
// UserError naming the key in question; `origin` names the text.
DeviceProfile device_profile_from_json(const Json& json, const std::string& origin);
DeviceProfile read_device_profile(const std::filesystem::path& path);

// One node with the profile's link, for any number of ranks; UserError if it has none.
ClusterSpec single_node(const DeviceProfile& profile);

// Built-in profiles (built_in_profiles.cpp says where each figure comes from); UserError that lists
// the names.
DeviceProfile device_profile(const std::string& name);
std::vector<std::string> device_profile_names();

}  // namespace longspan
