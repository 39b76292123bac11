#include "layout/parameter_layout.h"

#include <algorithm>

#include "base/check.h"
#include "base/narrow.h"

namespace longspan {
namespace {

// Owned slices begin at multiples of 16 elements, so that they are aligned for any vector unit.
constexpr int64_t kAlignmentElements = 16;

}  // namespace

std::vector<int> UnitHolders::group_ranks(int64_t group) const {
  std::vector<int> ranks;
  for (int64_t index = 0; index < shard_group; ++index) {
    ranks.push_back(narrow<int>(first + (group * shard_group + index) * stride));
  }
  return ranks;
}

std::vector<int> UnitHolders::replica_ranks(int64_t shard_index) const {
  std::vector<int> ranks;
  for (int64_t group = 0; group < num_groups(); ++group) {
    ranks.push_back(narrow<int>(first + (group * shard_group + shard_index) * stride));
  }
  return ranks;
}

ParameterLayout::ParameterLayout(std::span<const ParameterExtent> parameters, int64_t ranks,
                                 int64_t shard_group, int64_t expert_group)
    : num_ranks_(ranks), shard_group_(shard_group), expert_group_(expert_group) {
  LONGSPAN_CHECK(ranks >= 1, "ranks ", ranks);
  check_groups();
  for (const ParameterExtent& parameter : parameters) {
    const auto index = num_parameters();
    LONGSPAN_CHECK(parameter.elements >= 0, "elements ", parameter.elements);
    if (parameter.unit == num_units()) {
      units_.push_back({.parameters = {index, index}, .expert_block = parameter.expert_block});
    }
    LONGSPAN_CHECK(parameter.unit == num_units() - 1, "parameter ", index, " of unit ",
                   parameter.unit, " after unit ", num_units() - 1);
    Unit& unit = units_.back();
    LONGSPAN_CHECK(
        parameter.expert_block == unit.expert_block && parameter.expert_block < expert_group,
        "parameter ", index, " of expert block ", parameter.expert_block, " in unit ",
        parameter.unit, " of block ", unit.expert_block, " of ", expert_group);
    places_.push_back({parameter.unit, {unit.used, unit.used + parameter.elements}});
    unit.used += parameter.elements;
    unit.parameters.end = index + 1;
  }
  const int64_t multiple = ranks * kAlignmentElements;
  for (Unit& unit : units_) unit.padded = (unit.used + multiple - 1) / multiple * multiple;
}

void ParameterLayout::check_groups() const {
  const auto check_divides = [this](std::string_view key, int64_t group) {
    if (group >= 1 && num_ranks_ % group == 0) return;
    throw UserError(text("layout.", key, " = ", group, " does not divide the ", num_ranks_,
                         " ranks of the run (dedicated servers counted in); choose a divisor of ",
                         num_ranks_));
  };
  check_divides("shard_group", shard_group_);
  check_divides("expert_group", expert_group_);
  if (shard_group_ % expert_group_ != 0 && expert_group_ % shard_group_ != 0) {
    throw UserError(text("layout.shard_group = ", shard_group_, " and layout.expert_group = ",
                         expert_group_, ": one must divide the other"));
  }
}

UnitHolders ParameterLayout::holders_of_block(int64_t expert_block) const {
  if (expert_block < 0) return {.count = num_ranks_, .shard_group = shard_group_};
  return {.first = expert_block,
          .stride = expert_group_,
          .count = num_ranks_ / expert_group_,
          .shard_group = std::max<int64_t>(1, shard_group_ / expert_group_)};
}

UnitHolders ParameterLayout::holders(int64_t unit) const {
  return holders_of_block(expert_block(unit));
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
  const UnitHolders holders_of_unit = holders(unit);
  if (!holders_of_unit.contain(rank)) return {};
  const int64_t size = unit_elements(unit) / holders_of_unit.shard_group;
  const int64_t begin = holders_of_unit.shard_index(rank) * size;
  return {begin, begin + size};
}

Range ParameterLayout::owned(int64_t unit, int64_t rank) const {
  const UnitHolders holders_of_unit = holders(unit);
  if (!holders_of_unit.contain(rank)) return {};
  const int64_t size = unit_elements(unit) / holders_of_unit.count;
  const int64_t begin = shard(unit, rank).begin + holders_of_unit.group(rank) * size;
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
