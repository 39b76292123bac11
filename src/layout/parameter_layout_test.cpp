#include "layout/parameter_layout.h"

#include <gtest/gtest.h>

#include <map>
#include <vector>

#include "base/error.h"
#include "base/random.h"

namespace longspan {
namespace {

// Units on all ranks, then one unit for each block of experts.
std::vector<ParameterExtent> random_table(RandomStream& random, int64_t expert_group) {
  std::vector<ParameterExtent> table;
  const int64_t units = random.between(1, 5);
  const auto add = [&](int64_t unit, int64_t expert_block) {
    const int64_t parameters = random.between(1, 6);
    for (int64_t p = 0; p < parameters; ++p) {
      table.push_back({unit, random.between(0, 700), expert_block});
    }
  };
  for (int64_t unit = 0; unit < units; ++unit) add(unit, -1);
  for (int64_t block = 0; block < expert_group; ++block) add(units + block, block);
  return table;
}

void expect_one_owner(const std::vector<ParameterExtent>& table, const ParameterLayout& layout) {
  std::map<std::pair<int64_t, int64_t>, int64_t> owners;
  std::map<std::pair<int64_t, int64_t>, int64_t> holders;
  for (int64_t rank = 0; rank < layout.num_ranks(); ++rank) {
    for (int64_t unit = 0; unit < layout.num_units(); ++unit) {
      const Range owned = layout.owned(unit, rank);
      const Range shard = layout.shard(unit, rank);
      EXPECT_TRUE(shard.contains(owned));
      EXPECT_EQ(owned.begin % 16, 0);
      for (const FlatSlice& slice : layout.slices(unit, owned)) {
        EXPECT_EQ(slice.flat_begin,
                  layout.place(slice.parameter).flat.begin + slice.elements.begin);
        for (int64_t e = slice.elements.begin; e < slice.elements.end; ++e) {
          ++owners[{slice.parameter, e}];
        }
      }
      for (const FlatSlice& slice : layout.slices(unit, shard)) {
        for (int64_t e = slice.elements.begin; e < slice.elements.end; ++e) {
          ++holders[{slice.parameter, e}];
        }
      }
    }
  }
  int64_t elements = 0;
  for (const ParameterExtent& parameter : table) elements += parameter.elements;
  ASSERT_EQ(static_cast<int64_t>(owners.size()), elements);
  for (const auto& [element, count] : owners) ASSERT_EQ(count, 1);
  for (const auto& [element, count] : holders) {
    ASSERT_EQ(count, layout.holders(layout.place(element.first).unit).num_groups());
  }
}

bool divides(int64_t part, int64_t whole) {
  return whole % part == 0;
}

// Every element of every parameter is owned by exactly one rank, lies in that rank's shard, and the
// shards of a group hold every element once.
TEST(ParameterLayout, EveryElementHasOneOwnerAndOneHolderInEachGroup) {
  for (uint64_t seed = 0; seed < 60; ++seed) {
    SCOPED_TRACE(text("seed ", seed));
    RandomStream random(seed, "parameter layout");
    const int64_t ranks = random.between(1, 9);
    for (int64_t shards = 1; shards <= ranks; ++shards) {
      for (int64_t experts = 1; experts <= ranks; ++experts) {
        if (!divides(shards, ranks) || !divides(experts, ranks)) continue;
        if (!divides(shards, experts) && !divides(experts, shards)) continue;
        SCOPED_TRACE(text(ranks, " ranks, shard group ", shards, ", expert group ", experts));
        const auto table = random_table(random, experts);
        expect_one_owner(table, ParameterLayout(table, ranks, shards, experts));
      }
    }
  }
}

TEST(ParameterLayout, ExpertBlocksLieOnEveryEthRank) {
  const std::vector<ParameterExtent> table = {{0, 100}, {1, 100, 0}, {2, 100, 1}};
  const ParameterLayout layout(table, 8, 4, 2);
  EXPECT_EQ(layout.holders(2).group_ranks(1), (std::vector<int>{5, 7}));
  EXPECT_EQ(layout.holders(2).replica_ranks(0), (std::vector<int>{1, 5}));
  EXPECT_TRUE(layout.shard(2, 4).empty());
  EXPECT_TRUE(layout.owned(2, 4).empty());
  EXPECT_EQ(layout.shard(2, 7), Range(64, 128));
}

TEST(ParameterLayout, RefusesGroupsOfWhichNeitherDividesTheOther) {
  const std::vector<ParameterExtent> table = {{0, 100}};
  EXPECT_THROW(ParameterLayout(table, 6, 2, 3), UserError);
  EXPECT_THROW(ParameterLayout(table, 6, 2, 4), UserError);
}

TEST(ParameterLayout, GroupsAndReplicasPartTheRanks) {
  const std::vector<ParameterExtent> table = {{0, 100}};
  const ParameterLayout layout(table, 6, 3);
  const UnitHolders holders = layout.holders(0);
  EXPECT_EQ(holders.group_ranks(1), (std::vector<int>{3, 4, 5}));
  EXPECT_EQ(holders.replica_ranks(2), (std::vector<int>{2, 5}));
  EXPECT_EQ(holders.group(4), 1);
  EXPECT_EQ(holders.shard_index(4), 1);
  EXPECT_EQ(layout.unit_elements(0), 192);
  EXPECT_EQ(layout.used_elements(0), 100);
  EXPECT_EQ(layout.shard(0, 4), Range(64, 128));
  EXPECT_EQ(layout.owned(0, 4), Range(96, 128));
}

TEST(ParameterLayout, RefusesAGroupThatDoesNotDivideTheRanks) {
  const std::vector<ParameterExtent> table = {{0, 100}};
  try {
    ParameterLayout(table, 8, 3);
    FAIL() << "accepted";
  } catch (const UserError& error) {
    const std::string message = error.what();
    EXPECT_NE(message.find("shard_group = 3"), std::string::npos) << message;
    EXPECT_NE(message.find("8 ranks"), std::string::npos) << message;
  }
  EXPECT_THROW(ParameterLayout(table, 8, 0), UserError);
}

}  // namespace
}  // namespace longspan
