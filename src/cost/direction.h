// The two passes of a training step through the core attention: each has tasks, costs and a plan of
// its own.
//
//   flops_per_pair(sizes, Direction::kBackward)
#pragma once

namespace longspan {

enum class Direction { kForward, kBackward };

}  // namespace longspan
