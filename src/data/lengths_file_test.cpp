#include "data/lengths_file.h"

#include <gtest/gtest.h>

#include "base/error.h"
#include "formats/test_folder.h"

namespace longspan {
namespace {

TEST(LengthsFile, OneNumberALine) {
  EXPECT_EQ(parse_lengths("5\n17\n1\n", "f"), (std::vector<int64_t>{5, 17, 1}));
  EXPECT_EQ(parse_lengths("5\r\n 17 \t\n1099511627776", "f"),
            (std::vector<int64_t>{5, 17, int64_t{1} << 40}));
}

TEST(LengthsFile, ErrorsNameLineAndProblem) {
  const std::vector<std::pair<std::string, std::string>> cases = {
      {"5\n0\n", "f:2: \"0\" is zero"},
      {"-4\n", "f:1: \"-4\" is negative"},
      {"1\n2\nabc\n", "f:3: \"abc\" is not a whole number"},
      {std::string("E\0F\x01", 4), "f:1: \"E\\x00F\\x01\" is not a whole number"},
      {"1\n2.5\n", "f:2: \"2.5\" is not a whole number"},
      {"1 2\n", "f:1: \"1 2\" is not a whole number"},
      {"1\n\n2\n", "f:2: \"\" is not a whole number"},
      {"+1\n", "f:1: \"+1\" is not a whole number"},
      {"1e3\n", "f:1: \"1e3\" is not a whole number"},
      {"99999999999999999999\n", "is too large"},
      {"1099511627777\n", "is too large"},
      {"", "f is empty"},
  };
  for (const auto& [content, expected] : cases) {
    try {
      parse_lengths(content, "f");
      ADD_FAILURE() << "accepted: " << content;
    } catch (const UserError& error) {
      EXPECT_NE(std::string(error.what()).find(expected), std::string::npos) << error.what();
    }
  }
}

TEST(LengthsFile, ErrorsNameTheFile) {
  const TestFolder folder;
  folder.write("lengths.txt", "3\nx\n");
  try {
    read_lengths(folder.path() / "lengths.txt");
    FAIL();
  } catch (const UserError& error) {
    EXPECT_NE(std::string(error.what()).find("lengths.txt:2:"), std::string::npos) << error.what();
  }
  EXPECT_THROW(read_lengths(folder.path() / "missing.txt"), UserError);
}

}  // namespace
}  // namespace longspan
