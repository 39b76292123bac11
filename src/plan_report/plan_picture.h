// A picture of a plan: who computes what.
//
// Documents lie side by side from left to right, as wide as their tokens; servers stand one below
// the other. A coloured box says that a server computes queries of that document, the darker the
// more of their keys it covers; the outlined staircase is where tokens are at home. To the right,
// for each server, its load against the level, and the bytes that it sends and receives.
//
//   write_text_atomic("plan.svg", plan_picture_svg(layout, planned, "pretrain:512K, forward"));
//
// One SVG without scripts or fonts of its own; tooltips name what a box is. Pure; any thread.
#pragma once

#include <string>

#include "planner/attention_planner.h"

namespace longspan {

std::string plan_picture_svg(const TokenLayout& layout, const PlannedAttention& planned,
                             const std::string& title);

}  // namespace longspan
