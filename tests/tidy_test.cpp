// Rules of the tree that no compiler checks: who may include whom, headers with an essay, sizes,
// words. ARCHITECTURE.md prints the include table; the copy here is the one that counts, and the
// test compares them.
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <map>
#include <regex>
#include <set>
#include <sstream>
#include <string>
#include <vector>

namespace {

namespace fs = std::filesystem;

const fs::path kRoot = LONGSPAN_SOURCE_DIR;

struct FolderRule {
  std::set<std::string> may_include;  // folders, besides itself
  bool torch = false;
};

// In the order of the tree: no edge points down this list.
const std::vector<std::pair<std::string, FolderRule>> kFolders = {
    {"base", {{}, false}},
    {"formats", {{"base"}, false}},
    {"config", {{"base", "formats"}, false}},
    {"spec", {{"base", "formats"}, false}},
    {"layout", {{"base"}, false}},
    {"cost", {{"base", "formats", "layout"}, false}},
    {"planner", {{"base", "layout", "cost"}, false}},
    {"baselines", {{"base", "layout", "cost", "planner"}, false}},
    {"schedule", {{"base", "layout", "cost", "planner"}, false}},
    {"optim", {{"base"}, false}},
    {"data", {{"base", "formats"}, false}},
    {"observe", {{"base", "formats"}, false}},
    {"plan_report",
     {{"base", "formats", "spec", "layout", "cost", "planner", "baselines", "data", "observe"},
      false}},
    {"kernels", {{"base"}, false}},
    {"comm", {{"base"}, false}},
    {"device", {{"base", "kernels", "comm"}, true}},
    {"attention", {{"base", "layout", "cost", "planner", "kernels", "comm", "device"}, true}},
    {"layers", {{"base", "kernels", "device"}, true}},
    {"mix", {{"base", "layout", "comm", "device", "attention", "layers"}, true}},
    {"linear_attention",
     {{"base", "layout", "kernels", "comm", "device", "attention", "layers", "mix"}, true}},
    {"sparse_attention",
     {{"base", "layout", "cost", "planner", "kernels", "comm", "device", "attention", "layers",
       "mix"},
      true}},
    {"experts", {{"base", "layout", "kernels", "comm", "device", "layers"}, true}},
    {"model", {{"base", "spec", "kernels", "device", "layers"}, true}},
    {"checkpoint", {{"base", "formats", "spec", "layout", "data", "comm"}, false}},
    {"train",
     {{"base",
       "formats",
       "config",
       "spec",
       "layout",
       "cost",
       "planner",
       "schedule",
       "optim",
       "data",
       "observe",
       "kernels",
       "comm",
       "device",
       "attention",
       "layers",
       "mix",
       "linear_attention",
       "sparse_attention",
       "experts",
       "model",
       "checkpoint"},
      true}},
    {"profile",
     {{"base", "cost", "observe", "kernels", "comm", "device", "attention", "train"}, true}},
};

constexpr int64_t kMaxLines = 500;
constexpr size_t kMaxLineBytes = 110;

std::string read(const fs::path& path) {
  std::ifstream stream(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(stream), std::istreambuf_iterator<char>()};
}

std::vector<std::string> lines_of(const std::string& content) {
  std::vector<std::string> lines;
  std::istringstream stream(content);
  for (std::string line; std::getline(stream, line);) lines.push_back(line);
  return lines;
}

bool is_source(const fs::path& path) {
  static const std::set<std::string> kSuffixes = {".h", ".cpp", ".cu", ".cuh"};
  return kSuffixes.contains(path.extension().string());
}

std::vector<fs::path> sources(const std::string& folder) {
  std::vector<fs::path> found;
  for (const auto& entry : fs::recursive_directory_iterator(kRoot / folder)) {
    if (entry.is_regular_file() && is_source(entry.path())) found.push_back(entry.path());
  }
  std::sort(found.begin(), found.end());
  return found;
}

std::string name_of(const fs::path& path) {
  return fs::relative(path, kRoot).string();
}

TEST(Tidy, IncludesFollowTheTable) {
  const std::regex include(R"(^\s*#\s*include\s*["<]([^">]+)[">])");
  std::set<std::string> known;
  for (const auto& [folder, rule] : kFolders) known.insert(folder);
  for (const auto& entry : fs::directory_iterator(kRoot / "src")) {
    if (entry.is_directory()) {
      EXPECT_TRUE(known.contains(entry.path().filename().string()))
          << "src/" << entry.path().filename().string() << " has no rule in tests/tidy_test.cpp";
    }
  }
  for (const auto& [folder, rule] : kFolders) {
    if (!fs::exists(kRoot / "src" / folder)) continue;
    for (const fs::path& path : sources("src/" + folder)) {
      for (const std::string& line : lines_of(read(path))) {
        std::smatch match;
        if (!std::regex_search(line, match, include)) continue;
        const std::string target = match[1];
        const std::string top = target.substr(0, target.find('/'));
        const bool torch = top == "ATen" || top == "torch" || top == "c10";
        EXPECT_TRUE(!torch || rule.torch)
            << name_of(path) << " includes " << target << ": this folder must build without torch";
        EXPECT_TRUE(!known.contains(top) || top == folder || rule.may_include.contains(top))
            << name_of(path) << " includes " << target << ": src/" << folder
            << " may not include src/" << top;
      }
    }
  }
}

TEST(Tidy, TableHasNoCycle) {
  std::set<std::string> above;
  for (const auto& [folder, rule] : kFolders) {
    for (const std::string& target : rule.may_include) {
      EXPECT_TRUE(above.contains(target)) << folder << " -> " << target << " points down the table";
    }
    above.insert(folder);
  }
}

TEST(Tidy, ArchitecturePrintsTheTable) {
  const std::string page = read(kRoot / "ARCHITECTURE.md");
  for (const auto& [folder, rule] : kFolders) {
    std::string allowed;
    for (const auto& [other, unused] : kFolders) {
      if (rule.may_include.contains(other)) allowed += (allowed.empty() ? "" : " ") + other;
    }
    const std::string row = "| `" + folder + "` | " + (allowed.empty() ? "-" : allowed) + " | " +
                            (rule.torch ? "yes" : "no") + " |";
    EXPECT_NE(page.find(row), std::string::npos) << "ARCHITECTURE.md lacks the row: " << row;
  }
}

TEST(Tidy, HeadersOpenWithAnEssay) {
  for (const fs::path& path : sources("src")) {
    if (path.extension() != ".h") continue;
    const auto lines = lines_of(read(path));
    const auto end = std::find_if(lines.begin(), lines.end(),
                                  [](const std::string& line) { return line.rfind("//", 0) != 0; });
    EXPECT_GE(end - lines.begin(), 3)
        << name_of(path) << " does not open with what, why and contract";
    EXPECT_NE(std::find(lines.begin(), lines.end(), "#pragma once"), lines.end()) << name_of(path);
  }
}

TEST(Tidy, FilesAndLinesAreShort) {
  for (const std::string folder : {"src", "apps", "tests"}) {
    for (const fs::path& path : sources(folder)) {
      const auto lines = lines_of(read(path));
      EXPECT_LE(std::ssize(lines), kMaxLines) << name_of(path) << " holds more than one idea";
      for (size_t idx = 0; idx < lines.size(); ++idx) {
        EXPECT_LE(lines[idx].size(), kMaxLineBytes) << name_of(path) << ":" << idx + 1;
      }
    }
  }
}

TEST(Tidy, NoLeftovers) {
  // Spelled in parts, so that this file does not find itself.
  const std::vector<std::string> banned = {std::string("TO") + "DO", std::string("FIX") + "ME",
                                           std::string("HA") + "CK:", std::string("X") + "XX"};
  const std::set<std::string> banned_names = {"utils", "util", "common", "misc", "helpers"};
  for (const std::string folder : {"src", "apps", "tests"}) {
    for (const fs::path& path : sources(folder)) {
      const std::string content = read(path);
      for (const std::string& word : banned) {
        EXPECT_EQ(content.find(word), std::string::npos) << name_of(path) << " holds " << word;
      }
      EXPECT_FALSE(banned_names.contains(path.stem().string()))
          << name_of(path) << ": name the idea";
      const bool may_read_environment = name_of(path) == "src/comm/launch.cpp";
      if (!may_read_environment) {
        EXPECT_EQ(content.find(std::string("get") + "env("), std::string::npos)
            << name_of(path) << " reads the environment; only src/comm/launch.cpp may";
      }
    }
  }
}

}  // namespace
