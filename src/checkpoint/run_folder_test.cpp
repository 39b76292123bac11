#include "checkpoint/run_folder.h"

#include <gtest/gtest.h>

#include "base/error.h"
#include "formats/test_folder.h"

namespace longspan {
namespace {

constexpr const char* kLog = R"({"kind":"header","time":1,"longspan":"0.1","config_hash":"ab"}
)";

std::string refusal(const std::filesystem::path& folder) {
  try {
    check_run_folder(folder);
  } catch (const UserError& error) {
    return error.what();
  }
  return "";
}

std::string others_in(const std::filesystem::path& folder) {
  std::string names;
  for (const std::string& name : check_run_folder(folder)) names += name + " ";
  return names;
}

TEST(RunFolder, TheRootIsRefusedHoweverItIsWritten) {
  for (const char* root : {"/", "//", "/.", "/usr/..", "/absent/.."}) {
    EXPECT_NE(refusal(root).find("root of the file system"), std::string::npos) << root;
  }
}

TEST(RunFolder, NewEmptyAndOwnFoldersAreTaken) {
  const TestFolder test;
  EXPECT_EQ(others_in(test / "new"), "");
  EXPECT_EQ(others_in(test.path()), "");
  test.write("other/run.toml", "");
  test.write("other/step-by-step.txt", "");
  test.write("other/run.lock", "process 7 on host\n");
  EXPECT_EQ(others_in(test / "other"), "run.toml step-by-step.txt ");
  test.write("logged/log.jsonl", kLog);
  test.write("logged/config.toml", "");
  test.write("logged/step-3.partial/manifest.json", "");
  EXPECT_EQ(others_in(test / "logged"), "");
  test.write("saved/step-3/COMPLETE", "");
  test.write("saved/log.jsonl", "damaged\n");
  EXPECT_EQ(others_in(test / "saved"), "");
}

TEST(RunFolder, FilesThatARunWouldReplaceAreNotItsOwn) {
  for (const char* name : {"log.jsonl", "config.toml", "report.html", "tensorboard/events",
                           "step-3/notes.txt", "step-3.partial/notes.txt"}) {
    const TestFolder test;
    test.write(name, "{\"mine\": 1}\n");
    const std::string_view whole = name;
    const std::string top(whole.substr(0, whole.find('/')));
    EXPECT_NE(refusal(test.path()).find("holds " + top + ","), std::string::npos) << name;
    test.write("log.jsonl", kLog);
    EXPECT_EQ(refusal(test.path()), "") << name;
  }
}

TEST(RunFolder, HalfWrittenFilesOfKilledRunsGo) {
  const TestFolder test;
  test.write("log.jsonl.tmp-4711", "{");
  test.write("report.html.tmp-1", "<");
  for (const char* name : {"log.jsonl", "log.jsonl.tmp-", "log.jsonl.tmp-x1", "notes.tmp-4711"}) {
    test.write(name, "");
  }
  remove_run_leftovers(test.path());
  int64_t left = 0;
  for (const auto& entry : std::filesystem::directory_iterator(test.path())) {
    left += !entry.path().empty();
  }
  EXPECT_EQ(left, 4);
  EXPECT_FALSE(std::filesystem::exists(test / "log.jsonl.tmp-4711"));
  EXPECT_FALSE(std::filesystem::exists(test / "report.html.tmp-1"));
  remove_run_leftovers(test / "absent");
}

}  // namespace
}  // namespace longspan
