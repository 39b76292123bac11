// What every rank is doing, and the sentence that names the rank on which the others wait.
//
// Why: when a job stands still, the rank that notices is never the rank at fault. Transports keep
// one RankStatus per rank (thread_world.h in shared memory, message_engine.h by asking the others)
// and hand them here when somebody has waited too long.
//
//   throw DistributedError(stall_report(statuses, my_rank));
//   // rank 2 has been in 'attention forward, layer 3, chunk 1' for 31.2 s; rank 0 waited 30.0 s
//   for
//   // it in 'attention out, layer 3, chunk 1'
//
// Pure functions of their arguments.
#pragma once

#include <string>
#include <vector>

namespace longspan {

struct RankStatus {
  enum class Kind {
    kSilent,    // does not answer: the process is stopped or gone, or its host is
    kWaiting,   // in communication, for the ranks in `awaits`
    kActivity,  // in the named activity outside of communication
    kAfter,     // outside of communication, after the named operation
    kFinished,  // its program has ended its part
  };
  Kind kind = Kind::kAfter;
  std::string text;  // the operation or the activity; empty before the first
  double seconds = 0;
  std::vector<int> awaits;
};

// "has been in 'attention forward, layer 3' for 31.2 s", to follow the name of the rank.
std::string describe(const RankStatus& status);

// statuses[r] is rank r's; `reporter` is a waiting rank. Follows who waits for whom, starting at
// the reporter, and names the rank at the end that waits for nobody; of several the one that has
// been there longest, silent ranks before all others. A circle of waits is reported as such.
std::string stall_report(const std::vector<RankStatus>& statuses, int reporter);

}  // namespace longspan
