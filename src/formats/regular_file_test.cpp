#include "formats/regular_file.h"

#include <gtest/gtest.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>

#include "base/error.h"
#include "formats/mapped_file.h"
#include "formats/test_folder.h"

namespace longspan {
namespace {

std::string refusal_of(const std::filesystem::path& path) {
  try {
    read_text(path);
  } catch (const UserError& error) {
    EXPECT_THROW(MappedFile{path}, UserError);
    EXPECT_NE(std::string(error.what()).find(path.string()), std::string::npos) << error.what();
    return error.what();
  }
  return "";
}

TEST(RegularFile, IsReadWhole) {
  const TestFolder folder;
  std::string content(200000, 'x');
  content[70000] = '\0';
  EXPECT_EQ(read_text(folder.write("x", content)), content);
  EXPECT_EQ(MappedFile(folder / "x").characters(), content);
  EXPECT_EQ(read_text(folder.write("empty", "")), "");
  std::filesystem::create_symlink(folder / "x", folder / "link");
  EXPECT_EQ(read_text(folder / "link"), content);
  EXPECT_NE(read_text("/proc/self/stat"), "");  // a file whose size the system does not know
}

// None of them is waited for.
TEST(RegularFile, NothingElseIsRead) {
  const TestFolder folder;
  EXPECT_NE(refusal_of(folder / "absent").find("No such file"), std::string::npos);
  EXPECT_NE(refusal_of(folder.path()).find("folder"), std::string::npos);
  ASSERT_EQ(mkfifo((folder / "pipe").c_str(), 0600), 0);
  std::filesystem::create_symlink(folder / "pipe", folder / "link");
  const int end = ::socket(AF_UNIX, SOCK_STREAM, 0);
  ::sockaddr_un address{};
  address.sun_family = AF_UNIX;
  const std::string socket = folder / "socket";
  ASSERT_LT(socket.size(), sizeof(address.sun_path));
  std::copy(socket.begin(), socket.end(), address.sun_path);
  ASSERT_EQ(::bind(end, reinterpret_cast<const ::sockaddr*>(&address), sizeof(address)), 0);
  for (const auto& path :
       {folder / "pipe", folder / "link", folder / "socket", std::filesystem::path("/dev/zero")}) {
    EXPECT_NE(refusal_of(path).find("not a regular file"), std::string::npos) << path;
  }
  ::close(end);
}

}  // namespace
}  // namespace longspan
