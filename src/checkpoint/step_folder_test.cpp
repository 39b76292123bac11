#include "checkpoint/step_folder.h"

#include <gtest/gtest.h>

#include <string>

#include "base/error.h"
#include "formats/json.h"
#include "formats/test_folder.h"

namespace longspan {
namespace {

void save(const std::filesystem::path& run_folder, int64_t step) {
  StepFolder folder(run_folder, step);
  write_text_atomic(folder.path() / "state", text("state of ", step));
  folder.publish();
}

TEST(StepFolder, PublishedFoldersAreSeenAndOrderedByNumber) {
  const TestFolder test;
  const auto run = test / "runs/a";
  EXPECT_TRUE(complete_steps(run).empty());
  EXPECT_FALSE(latest_step(run).has_value());
  for (const int64_t step : {9, 10, 100}) save(run, step);
  EXPECT_EQ(complete_steps(run), (std::vector<int64_t>{9, 10, 100}));
  EXPECT_EQ(latest_step(run), 100);
  EXPECT_EQ(read_text(step_path(run, 10) / "state"), "state of 10");
  EXPECT_EQ(resolve_checkpoint(run), step_path(run, 100));
  EXPECT_EQ(resolve_checkpoint(step_path(run, 9)), step_path(run, 9));
}

TEST(StepFolder, LeftoversOfAKilledSaveAreIgnoredThenRemoved) {
  const TestFolder test;
  save(test.path(), 3);
  test.write("step-4.partial/state", "half");  // killed before the rename
  test.write("step-5/state", "no mark");       // killed between rename and mark
  test.write("step-x/state", "not ours");
  test.write("step-6.txt", "not ours");
  EXPECT_EQ(latest_step(test.path()), 3);
  EXPECT_THROW(resolve_checkpoint(test / "step-5"), UserError);
  {
    const StepFolder folder(test.path(), 5);
    EXPECT_FALSE(std::filesystem::exists(test / "step-4.partial"));
    EXPECT_FALSE(std::filesystem::exists(test / "step-5"));
    EXPECT_TRUE(std::filesystem::exists(folder.path()));
  }
  EXPECT_FALSE(std::filesystem::exists(test / "step-5.partial")) << "an abandoned save stays";
  EXPECT_TRUE(std::filesystem::exists(test / "step-x/state"));
  EXPECT_TRUE(std::filesystem::exists(test / "step-6.txt"));
  EXPECT_EQ(latest_step(test.path()), 3);
  save(test.path(), 5);
  EXPECT_EQ(read_text(test / "step-5/state"), "state of 5");
}

TEST(StepFolder, KeepLatestRemovesTheOldestCompleteOnes) {
  const TestFolder test;
  for (const int64_t step : {1, 2, 3, 4}) save(test.path(), step);
  keep_latest_steps(test.path(), 5);
  EXPECT_EQ(complete_steps(test.path()).size(), 4u);
  keep_latest_steps(test.path(), 2);
  EXPECT_EQ(complete_steps(test.path()), (std::vector<int64_t>{3, 4}));
  EXPECT_FALSE(std::filesystem::exists(step_path(test.path(), 2)));
}

TEST(StepFolder, AFolderThatCannotBeMadeIsAUserErrorThatNamesIt) {
  const TestFolder test;
  test.write("file", "a file where a folder is wanted");
  try {
    const StepFolder folder(test / "file", 1);
    FAIL() << "accepted";
  } catch (const UserError& error) {
    EXPECT_NE(std::string(error.what()).find("step-1.partial"), std::string::npos) << error.what();
  }
  EXPECT_THROW(resolve_checkpoint(test / "nothing"), UserError);
}

}  // namespace
}  // namespace longspan
