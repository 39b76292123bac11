// What "equals one rank" means for a case of layout_case.h, in float64.
//
//   expect_equals_one_rank(c);      // runs it in its layout and whole, compares loss and gradients
//
// GoogleTest's main thread only.
#pragma once

#include <ATen/ops/linalg_vector_norm.h>
#include <ATen/ops/sub.h>
#include <gtest/gtest.h>

#include <cmath>

#include "layout_case.h"

namespace longspan {

// Sums of at most a few thousand terms, reordered.
inline constexpr double kTolerance = 1e-10;

inline double norm(const at::Tensor& tensor) {
  return at::linalg_vector_norm(tensor, 2).item<double>();
}

inline void expect_equals_one_rank(const Case& c) {
  Case whole = c;
  whole.ranks = whole.chunks = whole.band = whole.shard_group = 1;
  whole.expert_group = 1;
  whole.expert_pairs = Case{}.expert_pairs;
  whole.dedicated = 0;
  whole.stored_mode = StoredMode::kKeep;
  whole.plans = Plans::kPlanner;
  const Outcome expected = run_case(whole);
  const Outcome found = run_case(c);
  EXPECT_NEAR(found.loss, expected.loss, kTolerance * std::abs(expected.loss)) << describe(c);
  // A gradient that vanishes in exact arithmetic (queries that see one key only) is rounding noise
  // of the others: it is compared on the scale of 1e-4 of the whole gradient's norm.
  double square_sum = 0;
  for (const auto& [name, reference] : expected.gradients)
    square_sum += norm(reference) * norm(reference);
  const double floor = std::max(1e-4 * std::sqrt(square_sum), 1e-300);
  for (const auto& [name, reference] : expected.gradients) {
    const double error =
        norm(at::sub(found.gradients.at(name), reference)) / std::max(norm(reference), floor);
    EXPECT_LE(error, kTolerance) << name << ", " << describe(c);
  }
}

}  // namespace longspan
