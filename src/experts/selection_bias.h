// Balances experts without a loss: the bias that only selects moves against the load.
//
//   steps = selection_bias_steps(loads, 1e-3);     // once a step, on all ranks alike
//   bias += steps
//
// The sign rule: the bias of an expert with fewer tokens than the mean rises by `rate`, that of one
// with more falls by it, and one at the mean stays. `loads` are the tokens of the whole step, over
// all ranks: counts are exact, so every rank computes the same steps. A rate of 0 changes nothing.
// Pure function.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace longspan {

// Of each expert: rate, -rate or 0.
std::vector<double> selection_bias_steps(std::span<const int64_t> loads, double rate);

}  // namespace longspan
