// A wrapper around any communicator that makes the network and the ranks misbehave, on purpose and
// repeatably.
//
//   FaultPlan plan{.seed = 7, .delay_probability = 0.2, .delay_us_max = 300, .reorder = true};
//   if (comm.rank() == 2) plan.faults = {{Fault::Kind::kCrash, "layer 3", 1}};
//   const auto faulty = with_faults(comm, plan);
//
// Delays and reordering must change no result: messages of one (peer, tag) stay in order, all
// others may be handed on in any order until this rank waits. Faults must end the job with an error
// that names rank and operation, never with a hang.
//
// Every rank wraps its own communicator; the plans may differ. Draws are keyed by (seed, rank).
// Subgroups share their parent's plan, counts and held-back messages. Threads: as the wrapped one.
#pragma once

#include <cstdint>
#include <memory>
#include <stdexcept>
#include <string>
#include <vector>

#include "comm/communicator.h"

namespace longspan {

struct Fault {
  enum class Kind {
    kDrop,   // the send is reported complete and never sent
    kStall,  // the rank does nothing for stall_s before the operation
    kCrash,  // the operation throws InjectedCrash
  };
  Kind kind = Kind::kDrop;
  std::string op;          // part of the operation's name
  int64_t occurrence = 0;  // which of this rank's operations (drop: sends) so named, from 0
  double stall_s = 0;
};

struct FaultPlan {
  uint64_t seed = 0;
  double delay_probability = 0;  // for each operation
  int64_t delay_us_max = 0;
  bool reorder = false;
  std::vector<Fault> faults = {};
};

struct InjectedCrash : std::runtime_error {
  using std::runtime_error::runtime_error;
};

// `inner` must outlive the wrapper.
std::unique_ptr<Communicator> with_faults(Communicator& inner, const FaultPlan& plan);

}  // namespace longspan
