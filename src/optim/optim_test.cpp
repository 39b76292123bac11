#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "base/error.h"
#include "optim/adamw.h"
#include "optim/learning_rate.h"

namespace longspan {
namespace {

TEST(LearningRate, WarmsUpStaysAndDecaysToTheMinimum) {
  for (const char* shape : {"cosine", "wsd"}) {
    SCOPED_TRACE(shape);
    const auto schedule = make_schedule(shape, 2.0, 100, 10, 40, 0.1);
    EXPECT_DOUBLE_EQ(schedule.at(0), 0.2);
    EXPECT_DOUBLE_EQ(schedule.at(4), 1.0);
    EXPECT_DOUBLE_EQ(schedule.at(9), 2.0);
    EXPECT_DOUBLE_EQ(schedule.at(10), 2.0);
    EXPECT_DOUBLE_EQ(schedule.at(59), 2.0);
    EXPECT_LT(schedule.at(60), 2.0);
    EXPECT_NEAR(schedule.at(79), 1.1, 1e-12);  // halfway down, in both shapes
    EXPECT_NEAR(schedule.at(99), 0.2, 1e-12);
    EXPECT_NEAR(schedule.at(500), 0.2, 1e-12);
    for (int64_t step = 60; step < 99; ++step) {
      EXPECT_GT(schedule.at(step), schedule.at(step + 1));
    }
  }
  EXPECT_NEAR(make_schedule("wsd", 1.0, 100, 0, 40, 0.0).at(69), 0.75, 1e-12);
  EXPECT_NEAR(make_schedule("cosine", 1.0, 100, 0, 40, 0.0).at(69),
              0.5 * (1 + std::cos(3.14159265358979324 / 4)), 1e-12);
}

TEST(LearningRate, ConstantAfterWarmup) {
  const auto schedule = make_schedule("constant", 1.0, 10, 2, 0, 0.1);
  EXPECT_DOUBLE_EQ(schedule.at(0), 0.5);
  for (int64_t step = 1; step < 12; ++step) EXPECT_DOUBLE_EQ(schedule.at(step), 1.0);
}

TEST(LearningRate, RefusesPartsThatDoNotFit) {
  EXPECT_THROW(make_schedule("cosine", 1.0, 10, 5, 6, 0.1), UserError);
  EXPECT_THROW(make_schedule("constant", 1.0, 10, 0, 5, 0.1), UserError);
  EXPECT_THROW(make_schedule("step", 1.0, 10, 0, 0, 0.1), UserError);
}

TEST(AdamW, ClipFactorScalesDownOnly) {
  EXPECT_DOUBLE_EQ(clip_factor(4.0, 1.0), 0.25);
  EXPECT_DOUBLE_EQ(clip_factor(0.5, 1.0), 1.0);
  EXPECT_DOUBLE_EQ(clip_factor(0.0, 1.0), 1.0);
  EXPECT_DOUBLE_EQ(clip_factor(400.0, 0.0), 1.0);
  EXPECT_THROW(clip_factor(1.0, -1.0), UserError);
  EXPECT_THROW(clip_factor(std::numeric_limits<double>::quiet_NaN(), 1.0), InternalError);
}

}  // namespace
}  // namespace longspan
