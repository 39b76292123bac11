// The first 128-block at which something that grows with the block is enough.
//
// Costs grow with a border about as pairs do, so a search begins at a guess: it looks at a few
// blocks around it, further and further off, then halves what is left.
//
//   first_block(low, high, guess, [&](int64_t block) { return cost_to(block) >= target; })
//
// Returns a block of [low, high]; high stands for none. Pure.
#pragma once

#include <algorithm>
#include <cstdint>

namespace longspan {

template <typename Enough>
int64_t first_block(int64_t low, int64_t high, int64_t guess, const Enough& is_enough) {
  constexpr int64_t kGuessSteps = 8;
  int64_t probe = guess;
  for (int64_t step = 1; low < high; step *= 2) {
    probe = std::clamp(probe, low, high - 1);
    if (is_enough(probe)) {
      high = probe;
      probe = step < kGuessSteps ? probe - step : (low + high) / 2;
    } else {
      low = probe + 1;
      probe = step < kGuessSteps ? probe + step : (low + high) / 2;
    }
  }
  return low;
}

}  // namespace longspan
