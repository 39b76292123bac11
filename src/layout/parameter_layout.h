// Where every element of every parameter lies: which flat array, which rank.
//
// Parameters are grouped into *units*, the pieces that are gathered and reduced as one (embedding,
// layer 0 .. L-1, final norm with an untied head). The parameters of a unit lie one after the other
// in one flat array, padded to a multiple of ranks x 16 elements. R ranks form R/S shard groups of
// S ranks; rank r is index i = r % S of group g = r / S.
//   - Weights: shard i of a unit, [i*U/S, (i+1)*U/S), is held by index i of every group.
//   - Optimizer state: the R/S ranks that hold shard i divide it evenly, so every element of it is
//     owned by exactly one of all R ranks: [i*U/S + g*U/R, i*U/S + (g+1)*U/R).
// Experts are spread over an *expert group* of E ranks, [k*E, (k+1)*E): a unit that holds block j
// of a layer's experts lies on the ranks r with r % E = j only. They divide it among themselves as
// above: max(1, S/E) of them are a shard group, R/E own it.
//
//   const ParameterLayout layout(extents, /*ranks=*/8, /*shard_group=*/4);
//   for (const FlatSlice& s : layout.slices(unit, layout.owned(unit, rank)))
//     ...  // parameter s.parameter, its elements s.elements, at flat position s.flat_begin
//
// Stores, checkpoints and memory plans all read this one type. An immutable value; any thread.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "base/range.h"

namespace longspan {

struct ParameterExtent {
  int64_t unit = 0;  // non-decreasing along the table
  int64_t elements = 0;
  int64_t expert_block = -1;  // of the expert group; -1: on all ranks. Alike within a unit
};

// The ranks that hold a unit, first, first + stride, ..., and how many of them share one copy.
struct UnitHolders {
  int64_t first = 0;
  int64_t stride = 1;
  int64_t count = 1;
  int64_t shard_group = 1;

  bool contain(int64_t rank) const { return rank % stride == first; }
  int64_t index(int64_t rank) const { return rank / stride; }
  int64_t num_groups() const { return count / shard_group; }
  int64_t group(int64_t rank) const { return index(rank) / shard_group; }
  int64_t shard_index(int64_t rank) const { return index(rank) % shard_group; }
  // The ranks of one shard group, by shard index.
  std::vector<int> group_ranks(int64_t group) const;
  // The ranks that hold the same shard, by group.
  std::vector<int> replica_ranks(int64_t shard_index) const;
  bool operator==(const UnitHolders&) const = default;
};

struct ParameterPlace {
  int64_t unit = 0;
  Range flat;  // in the unit's flat array
};

// The part of one parameter that lies in some flat range.
struct FlatSlice {
  int64_t parameter = 0;
  Range elements;          // of the parameter, row-major
  int64_t flat_begin = 0;  // of elements.begin, in the unit's flat array
};

class ParameterLayout {
 public:
  // UserError if a group does not divide the ranks, or neither group divides the other.
  ParameterLayout(std::span<const ParameterExtent> parameters, int64_t ranks, int64_t shard_group,
                  int64_t expert_group = 1);

  int64_t num_ranks() const { return num_ranks_; }
  int64_t shard_group() const { return shard_group_; }
  int64_t expert_group() const { return expert_group_; }
  int64_t num_parameters() const { return static_cast<int64_t>(places_.size()); }
  int64_t num_units() const { return static_cast<int64_t>(units_.size()); }

  // Of units on all ranks (block -1), or of those with a block of experts.
  UnitHolders holders_of_block(int64_t expert_block) const;
  UnitHolders holders(int64_t unit) const;
  int64_t expert_block(int64_t unit) const { return units_.at(to_index(unit)).expert_block; }

  const ParameterPlace& place(int64_t parameter) const;
  // The parameters of a unit, in the order in which they lie in it.
  Range unit_parameters(int64_t unit) const { return units_.at(to_index(unit)).parameters; }
  // Elements of the unit's parameters, and of its flat array with the padding.
  int64_t used_elements(int64_t unit) const { return units_.at(to_index(unit)).used; }
  int64_t unit_elements(int64_t unit) const { return units_.at(to_index(unit)).padded; }
  int64_t max_unit_elements() const;
  int64_t total_unit_elements() const;

  // Empty on a rank that does not hold the unit.
  Range shard(int64_t unit, int64_t rank) const;
  Range owned(int64_t unit, int64_t rank) const;

  // What lies in `flat`, in order; padding belongs to no parameter and is left out.
  std::vector<FlatSlice> slices(int64_t unit, Range flat) const;

 private:
  struct Unit {
    Range parameters;
    int64_t used = 0;
    int64_t padded = 0;
    int64_t expert_block = -1;
  };
  void check_groups() const;
  static size_t to_index(int64_t position) { return static_cast<size_t>(position); }

  int64_t num_ranks_ = 1;
  int64_t shard_group_ = 1;
  int64_t expert_group_ = 1;
  std::vector<ParameterPlace> places_;
  std::vector<Unit> units_;
};

}  // namespace longspan
