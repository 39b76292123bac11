// The order of a round's transfers: by source, destination, kind and line.
//
// Why: all rows from one rank to another are one message, so they must stand together; and planning
// sorts thousands of transfers, each time by ranks, of which there are few. So they are counted
// into place, which takes a few nanoseconds for each.
//
//   round.transfers = in_wire_order(num_ranks, transfers);
//   plan.back = mirrored(num_ranks, plan.direction, plan.out);     // sorted as well
//
// Pure functions; any thread.
#pragma once

#include <vector>

#include "planner/attention_plan.h"

namespace longspan {

std::vector<Transfer> in_wire_order(int num_ranks, const std::vector<Transfer>& transfers);

// Of transfers that come by rising destination, kind and line.
void sort_by_source(int num_ranks, std::vector<Transfer>* transfers);

// The back leg whose results go the ways of the out leg in reverse; rounds without any are left
// out.
std::vector<Round> mirrored(int num_ranks, Direction direction, const std::vector<Round>& out);

}  // namespace longspan
