#include "formats/json_fault.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "base/error.h"
#include "formats/json.h"

namespace longspan {
namespace {

std::string refusal(const std::string& source) {
  try {
    parse_json(source, "x.json");
  } catch (const UserError& error) {
    return error.what();
  }
  return "accepted";
}

TEST(JsonFault, ErrorsNameLineAndColumnInPlainWords) {
  EXPECT_EQ(refusal("{\n \"a\": 1,\n \"b\" 2 }"),
            "x.json:3: not valid JSON at column 6: unexpected number literal; expected ':'");
  EXPECT_EQ(refusal("{\n\"a\": 1"),
            "x.json:2: not valid JSON at column 7: unexpected end of input; expected '}'");
  for (const char* bad : {"", "{", "[1, 2", "{\"a\": \"\xff\"}", "[1] x", "nul "}) {
    const std::string message = refusal(bad);
    EXPECT_TRUE(message.starts_with("x.json:1: not valid JSON")) << message;
    EXPECT_EQ(message.find("exception"), std::string::npos) << message;
    EXPECT_EQ(message.find("syntax error"), std::string::npos) << message;
  }
}

TEST(JsonFault, AMissingKeyHasNoPlace) {
  try {
    parse_json("{}", "x.json").at("format");
    ADD_FAILURE() << "found";
  } catch (const Json::exception& error) {
    const JsonFault fault = describe_json_error(error);
    EXPECT_EQ(fault.line, 0);
    EXPECT_EQ(fault.reason, "key 'format' not found");
  }
}

}  // namespace
}  // namespace longspan
