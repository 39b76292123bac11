#include "comm/stall_report.h"

#include <gtest/gtest.h>

namespace longspan {
namespace {

using Kind = RankStatus::Kind;

TEST(StallReport, NamesTheRankAtTheEndOfTheChain) {
  const std::vector<RankStatus> statuses{
      {Kind::kWaiting, "attention out, layer 3", 30.04, {1}},
      {Kind::kWaiting, "attention back, layer 3", 29.5, {2}},
      {Kind::kActivity, "attention forward, layer 3", 31.24, {}},
      {Kind::kActivity, "something unrelated", 500, {}},
  };
  EXPECT_EQ(stall_report(statuses, 0),
            "rank 2 has been in 'attention forward, layer 3' for 31.2 s; rank 1 waited 29.5 s for "
            "it in 'attention back, layer 3'; rank 0 waited 30.0 s for rank 1 in 'attention out, "
            "layer 3'");
  EXPECT_EQ(stall_report(statuses, 1),
            "rank 2 has been in 'attention forward, layer 3' for 31.2 s; rank 1 waited 29.5 s for "
            "it in 'attention back, layer 3'");
}

TEST(StallReport, OfSeveralTheLongestAndTheSilentFirst) {
  std::vector<RankStatus> statuses{
      {Kind::kWaiting, "barrier", 10, {1, 2, 3}},
      {Kind::kActivity, "short work", 1, {}},
      {Kind::kAfter, "sum", 12, {}},
      {Kind::kFinished, "", 3, {}},
  };
  EXPECT_EQ(stall_report(statuses, 0).find("rank 2 has not communicated for 12.0 s, since 'sum'"),
            0U);
  statuses[3].kind = Kind::kSilent;
  EXPECT_EQ(stall_report(statuses, 0).find("rank 3 does not answer"), 0U);
}

TEST(StallReport, CircleOfWaits) {
  const std::vector<RankStatus> statuses{{Kind::kWaiting, "a", 2, {1}},
                                         {Kind::kWaiting, "b", 1, {0, 2}},
                                         {Kind::kWaiting, "c", 3, {0}}};
  EXPECT_EQ(stall_report(statuses, 0),
            "ranks wait for each other: rank 0 has waited 2.0 s for rank 1 in 'a'; rank 1 has "
            "waited 1.0 s for ranks 0, 2 in 'b'; rank 2 has waited 3.0 s for rank 0 in 'c'");
}

TEST(StallReport, RanksThatHaveNeverSpoken) {
  EXPECT_EQ(describe({Kind::kAfter, "", 4, {}}), "has not communicated yet, for 4.0 s");
  EXPECT_EQ(describe({Kind::kFinished, "", 4, {}}), "ended its part 4.0 s ago");
}

}  // namespace
}  // namespace longspan
