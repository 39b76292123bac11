// The two passes of a training step through the core attention.
#pragma once

namespace longspan {

enum class Direction { kForward, kBackward };

}  // namespace longspan
