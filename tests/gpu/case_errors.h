// How far a case of layout_case.h is from another run of it, and the case in one piece.
//
//   const Outcome expected = run_case(whole(c));
//   const Outcome found = run_case(c, {.type = at::kBFloat16, .device = kGpu});
//   gradient_error(found, expected, name)
//
// Pure functions.
#pragma once

#include <ATen/ATen.h>

#include <cmath>

#include "layout_case.h"

namespace longspan {

// On one rank, in one piece.
inline Case whole(const Case& c) {
  Case one = c;
  one.ranks = one.chunks = one.band = one.shard_group = one.expert_group = 1;
  one.expert_pairs = Case{}.expert_pairs;
  one.dedicated = 0;
  one.stored_mode = StoredMode::kKeep;
  one.plans = Plans::kPlanner;
  return one;
}

inline double norm_of(const at::Tensor& tensor) {
  return tensor.to(at::kDouble).norm().item<double>();
}

inline double whole_norm(const Outcome& outcome) {
  double squares = 0;
  for (const auto& [name, gradient] : outcome.gradients) squares += std::pow(norm_of(gradient), 2);
  return std::sqrt(squares);
}

// Relative to the gradient, or to 1e-4 of all gradients where it vanishes in exact arithmetic.
inline double gradient_error(const Outcome& found, const Outcome& expected,
                             const std::string& name) {
  const at::Tensor reference = expected.gradients.at(name).to(at::kDouble);
  const at::Tensor value = found.gradients.at(name).to(at::kDouble);
  const double floor = std::max(1e-4 * whole_norm(expected), 1e-300);
  return norm_of(value - reference) / std::max(norm_of(reference), floor);
}

}  // namespace longspan
