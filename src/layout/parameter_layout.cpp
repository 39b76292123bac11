#include "layout/parameter_layout.h"

#include <algorithm>

#include "base/check.h"
#include "base/narrow.h"

namespace longspan {
namespace {

// Owned slices begin at multiples of 16 elements, so that they are aligned for any vector unit.
constexpr int64_t kAlignmentElements = 16;

}  // namespace

ParameterLayout::ParameterLayout(std::span<const ParameterExtent> parameters, int64_t ranks,
                                 int64_t shard_group)
    : num_ranks_(ranks), shard_group_(shard_group) {
  LONGSPAN_CHECK(ranks >= 1, "ranks ", ranks);
  if (shard_group < 1 || ranks % shard_group != 0) {
    throw UserError(text("layout.shard_group = ", shard_group, " does not divide the ", ranks,
                         " ranks of the run (dedicated servers counted in); choose a divisor of ",
                         ranks));
  }
  for (const ParameterExtent& parameter : parameters) {
    const auto index = num_parameters();
    LONGSPAN_CHECK(parameter.elements >= 0, "elements ", parameter.elements);
    if (parameter.unit == num_units()) units_.push_back({.parameters = {index, index}});
    LONGSPAN_CHECK(parameter.unit == num_units() - 1, "parameter ", index, " of unit ",
                   parameter.unit, " after unit ", num_units() - 1);
    Unit& unit = units_.back();
    places_.push_back({parameter.unit, {unit.used, unit.used + parameter.elements}});
    unit.used += parameter.elements;
    unit.parameters.end = index + 1;
  }
  const int64_t multiple = ranks * kAlignmentElements;
  for (Unit& unit : units_) unit.padded = (unit.used + multiple - 1) / multiple * multiple;
}

std::vector<int> ParameterLayout::group_ranks(int64_t group) const {
  std::vector<int> ranks;
  for (int64_t index = 0; index < shard_group_; ++index) {
    ranks.push_back(narrow<int>(group * shard_group_ + index));
  }
  return ranks;
}

std::vector<int> ParameterLayout::replica_ranks(int64_t shard_index) const {
  std::vector<int> ranks;
  for (int64_t group = 0; group < num_groups(); ++group) {
    ranks.push_back(narrow<int>(group * shard_group_ + shard_index));
  }
  return ranks;
}

const ParameterPlace& ParameterLayout::place(int64_t parameter) const {
  LONGSPAN_CHECK(Range(0, num_parameters()).contains(parameter), "parameter ", parameter, " of ",
                 num_parameters());
  return places_[to_index(parameter)];
}

int64_t ParameterLayout::max_unit_elements() const {
  int64_t most = 0;
  for (const Unit& unit : units_) most = std::max(most, unit.padded);
  return most;
}

int64_t ParameterLayout::total_unit_elements() const {
  int64_t total = 0;
  for (const Unit& unit : units_) total += unit.padded;
  return total;
}

Range ParameterLayout::shard(int64_t unit, int64_t rank) const {
  const int64_t size = unit_elements(unit) / shard_group_;
  const int64_t begin = shard_index(rank) * size;
  return {begin, begin + size};
}

Range ParameterLayout::owned(int64_t unit, int64_t rank) const {
  const int64_t size = unit_elements(unit) / num_ranks_;
  const int64_t begin = shard(unit, rank).begin + group(rank) * size;
  return {begin, begin + size};
}

std::vector<FlatSlice> ParameterLayout::slices(int64_t unit, Range flat) const {
  std::vector<FlatSlice> slices;
  const Range parameters = unit_parameters(unit);
  for (int64_t parameter = parameters.begin; parameter < parameters.end; ++parameter) {
    const Range place = places_[to_index(parameter)].flat;
    const Range part = intersect(place, flat);
    if (!part.empty()) slices.push_back({parameter, shift(part, -place.begin), part.begin});
  }
  return slices;
}

}  // namespace longspan
