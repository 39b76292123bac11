// Lists of the pass "relay", whose memory plan after plan works in.
//
// Why: relayed rows are the longest lists of a plan, made anew for each candidate.
//
//   RelayScratch scratch;
//   relay_rows(layout, costs, &routed, &clocks, &scratch);
//
// What it holds between calls means nothing (planner_scratch.h). One call at a time may use it.
#pragma once

#include <array>
#include <span>
#include <vector>

#include "planner/shared_rows.h"

namespace longspan {

// Takers of a stretch in one node, or a rank alone if there is but one node.
struct RelayGroup {
  std::span<const int> takers;
  int entry = 0;  // the one that gets the rows from outside
  double entry_sent_bytes = 0;
};

// The takers of a stretch: those in its home's own node, and the groups [begin, end) of the others.
struct RelayTakers {
  std::span<const int> inside;
  size_t begin = 0;
  size_t end = 0;
};

struct RelayScratch {
  // Rounds of relayed rows: from homes; on to other nodes; inside those.
  static constexpr size_t kRounds = 3;
  // Shared rows on their way, round by round.
  using Hops = std::array<std::vector<Transfer>, kRounds>;

  SharedRows shared;
  std::vector<Transfer> alone;  // rows with one taker, straight from their homes
  Hops hops;                    // of the ways found last
  Hops best_hops;
  std::vector<Transfer> of_kind;
  std::vector<RelayTakers> takers;         // of each stretch
  std::vector<RelayGroup> groups;          // of all stretches
  std::vector<RelayGroup> stretch_groups;  // of the stretch under way
};

}  // namespace longspan
