// What a message is matched by at its destination: who sent it, on which channel, with which tag.
//
// A channel separates communicators that share ranks, and a communicator's own collectives from its
// user's messages. Each communicator owns two channels, derived from its group number; group
// numbers differ between any two communicators that share a rank.
//
//   const MessageKey key{user_channel(group), source, tag};
//
// Values without shared state. `source` counts ranks of the whole job, not of a subgroup.
#pragma once

#include <compare>
#include <cstdint>

namespace longspan {

struct MessageKey {
  int64_t channel = 0;
  int source = 0;
  int64_t tag = 0;
  auto operator<=>(const MessageKey&) const = default;
};

inline int64_t user_channel(int64_t group) {
  return 2 * group;
}
inline int64_t collective_channel(int64_t group) {
  return 2 * group + 1;
}

}  // namespace longspan
