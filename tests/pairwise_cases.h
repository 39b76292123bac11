// Test cases over many small choices, such that every pair of values of two choices occurs.
//
// Why: a run has a dozen choices and faults hide in combinations of two. Each case is the best of a
// few seeded draws: the one with the most pairs not seen so far. What remains uncovered is
// reported, so a test can demand zero.
//
//   PairwiseCases cases({{"ranks", 5}, {"chunks", 4}, ...}, is_allowed);
//   std::vector<int> values = cases.next(seed);    // one index per dimension
//   cases.uncovered()                              // pairs still unseen that some allowed case
//   could show
//
// Single thread.
#pragma once

#include <algorithm>
#include <functional>
#include <set>
#include <string>
#include <tuple>
#include <vector>

#include "base/random.h"

namespace longspan {

struct Dimension {
  std::string name;
  int num_values = 1;
};

class PairwiseCases {
 public:
  using Allowed = std::function<bool(const std::vector<int>&)>;
  using Pair = std::tuple<size_t, int, size_t, int>;  // dimension, value, dimension, value

  PairwiseCases(std::vector<Dimension> dimensions, Allowed allowed)
      : dimensions_(std::move(dimensions)), allowed_(std::move(allowed)) {}

  std::vector<int> next(uint64_t seed) {
    RandomStream random(seed, "pairwise case");
    std::vector<int> best;
    size_t best_gain = 0;
    for (int draw = 0; draw < kDraws || best.empty(); ++draw) {
      std::vector<int> values;
      for (const Dimension& dimension : dimensions_) {
        values.push_back(
            static_cast<int>(random.below(static_cast<uint64_t>(dimension.num_values))));
      }
      if (!allowed_(values)) continue;
      const size_t gain = new_pairs(values).size();
      if (best.empty() || gain > best_gain) {
        best = values;
        best_gain = gain;
      }
    }
    for (const Pair& pair : new_pairs(best)) seen_.insert(pair);
    return best;
  }

  // Every pair that an allowed case may hold, less those seen. Whether a pair is possible is found
  // by drawing.
  std::vector<std::string> uncovered() const {
    std::vector<std::string> missing;
    for (size_t a = 0; a < dimensions_.size(); ++a) {
      for (size_t b = a + 1; b < dimensions_.size(); ++b) {
        for (int a_value = 0; a_value < dimensions_[a].num_values; ++a_value) {
          for (int b_value = 0; b_value < dimensions_[b].num_values; ++b_value) {
            if (!seen_.contains({a, a_value, b, b_value}) && is_possible(a, a_value, b, b_value)) {
              missing.push_back(dimensions_[a].name + "=" + std::to_string(a_value) + ", " +
                                dimensions_[b].name + "=" + std::to_string(b_value));
            }
          }
        }
      }
    }
    return missing;
  }

 private:
  static constexpr int kDraws = 40;

  std::vector<Pair> new_pairs(const std::vector<int>& values) const {
    std::vector<Pair> found;
    for (size_t a = 0; a < values.size(); ++a) {
      for (size_t b = a + 1; b < values.size(); ++b) {
        const Pair pair{a, values[a], b, values[b]};
        if (!seen_.contains(pair)) found.push_back(pair);
      }
    }
    return found;
  }

  bool is_possible(size_t a, int a_value, size_t b, int b_value) const {
    RandomStream random(0, "pair possible");
    for (int draw = 0; draw < 2000; ++draw) {
      std::vector<int> values;
      for (const Dimension& dimension : dimensions_) {
        values.push_back(
            static_cast<int>(random.below(static_cast<uint64_t>(dimension.num_values))));
      }
      values[a] = a_value;
      values[b] = b_value;
      if (allowed_(values)) return true;
    }
    return false;
  }

  std::vector<Dimension> dimensions_;
  Allowed allowed_;
  std::set<Pair> seen_;
};

}  // namespace longspan
