#include "formats/atomic_file.h"

#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/stat.h>

#include <csignal>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "formats/json.h"
#include "formats/mapped_file.h"
#include "formats/test_folder.h"

namespace longspan {
namespace {

int64_t count_files(const TestFolder& folder) {
  return std::distance(std::filesystem::directory_iterator(folder.path()), {});
}

TEST(AtomicFile, AppearsOnlyWhenPublished) {
  const TestFolder folder;
  const auto path = folder.write("x", "old");
  AtomicFile file(path);
  file.write(std::string_view("new"));
  file.seal();
  EXPECT_EQ(read_text(path), "old");
  file.publish();
  EXPECT_EQ(read_text(path), "new");
  EXPECT_EQ(count_files(folder), 1);
}

TEST(AtomicFile, LeavesNothingBehindWhenAbandoned) {
  const TestFolder folder;
  {
    AtomicFile file(folder / "x");
    file.write(std::string_view("half"));
  }
  EXPECT_EQ(count_files(folder), 0);
}

TEST(AtomicFile, LargeAndSmallWritesKeepTheirOrder) {
  const TestFolder folder;
  std::string expected;
  AtomicFile file(folder / "x");
  for (const size_t size : {3u, 1u << 20, 7u, 900'000u, 300'000u, 3u << 20, 1u}) {
    const std::string part(size, static_cast<char>('a' + size % 23));
    file.write(part);
    expected += part;
  }
  file.publish();
  EXPECT_EQ(file.bytes_written(), static_cast<int64_t>(expected.size()));
  EXPECT_EQ(read_text(folder / "x"), expected);
}

TEST(AtomicFile, SaysWhyItCannotWrite) {
  const TestFolder folder;
  EXPECT_THROW(AtomicFile(folder / "no/such/folder/x"), UserError);
}

TEST(AtomicFile, ReplacesNoPipeAndKeepsLinks) {
  const TestFolder folder;
  const auto pipe = folder / "pipe";
  ASSERT_EQ(mkfifo(pipe.c_str(), 0600), 0);
  EXPECT_THROW(write_text_atomic(pipe, "new"), UserError);
  EXPECT_TRUE(std::filesystem::is_fifo(pipe));
  const auto target = folder.write("target", "old");
  std::filesystem::create_symlink("target", folder / "link");
  write_text_atomic(folder / "link", "new");
  EXPECT_TRUE(std::filesystem::is_symlink(folder / "link"));
  EXPECT_EQ(read_text(target), "new");
}

TEST(AtomicFile, JsonWithTextThatIsNotUtf8) {
  const TestFolder folder;
  write_json_atomic(folder / "x", Json{{"name", "a\xff"}});
  EXPECT_EQ(read_json(folder / "x").at("name"), "a\xEF\xBF\xBD");
}

// A limit on file size fails the way a full disk does: a write comes back short, then with an
// error.
TEST(AtomicFile, FullDiskIsAnErrorAndKeepsTheOldFile) {
  const TestFolder folder;
  const auto path = folder.write("x", "old");
  rlimit before{};
  ASSERT_EQ(getrlimit(RLIMIT_FSIZE, &before), 0);
  const auto handler = std::signal(SIGXFSZ, SIG_IGN);
  const rlimit small{1 << 16, before.rlim_max};
  ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &small), 0);
  EXPECT_THROW(write_text_atomic(path, std::string(1 << 20, 'a')), UserError);
  ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &before), 0);
  std::signal(SIGXFSZ, handler);
  EXPECT_EQ(read_text(path), "old");
  EXPECT_EQ(count_files(folder), 1);
}

TEST(MappedFile, ReadsMovesAndRefuses) {
  const TestFolder folder;
  MappedFile file(folder.write("x", "content"));
  const MappedFile moved = std::move(file);
  EXPECT_EQ(moved.characters(), "content");
  EXPECT_EQ(MappedFile(folder.write("empty", "")).size(), 0);
  EXPECT_THROW(MappedFile(folder / "absent"), UserError);
  EXPECT_THROW(MappedFile(folder.path()), UserError);
}

}  // namespace
}  // namespace longspan
