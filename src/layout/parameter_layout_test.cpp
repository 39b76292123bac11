#include "layout/parameter_layout.h"

#include <gtest/gtest.h>

#include <map>
#include <vector>

#include "base/error.h"
#include "base/random.h"

namespace longspan {
namespace {

std::vector<ParameterExtent> random_table(RandomStream& random) {
  std::vector<ParameterExtent> table;
  const int64_t units = random.between(1, 5);
  for (int64_t unit = 0; unit < units; ++unit) {
    const int64_t parameters = random.between(1, 6);
    for (int64_t p = 0; p < parameters; ++p) table.push_back({unit, random.between(0, 700)});
  }
  return table;
}

// Every element of every parameter is owned by exactly one rank, lies in that rank's shard, and the
// shards of a group hold every element once.
TEST(ParameterLayout, EveryElementHasOneOwnerAndOneHolderInEachGroup) {
  for (uint64_t seed = 0; seed < 60; ++seed) {
    SCOPED_TRACE(text("seed ", seed));
    RandomStream random(seed, "parameter layout");
    const auto table = random_table(random);
    const int64_t ranks = random.between(1, 9);
    for (int64_t group_size = 1; group_size <= ranks; ++group_size) {
      if (ranks % group_size != 0) continue;
      const ParameterLayout layout(table, ranks, group_size);
      std::map<std::pair<int64_t, int64_t>, int64_t> owners;
      std::map<std::pair<int64_t, int64_t>, int64_t> holders;
      for (int64_t rank = 0; rank < ranks; ++rank) {
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
      for (const auto& [element, count] : holders) ASSERT_EQ(count, ranks / group_size);
    }
  }
}

TEST(ParameterLayout, GroupsAndReplicasPartTheRanks) {
  const std::vector<ParameterExtent> table = {{0, 100}};
  const ParameterLayout layout(table, 6, 3);
  EXPECT_EQ(layout.group_ranks(1), (std::vector<int>{3, 4, 5}));
  EXPECT_EQ(layout.replica_ranks(2), (std::vector<int>{2, 5}));
  EXPECT_EQ(layout.group(4), 1);
  EXPECT_EQ(layout.shard_index(4), 1);
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
