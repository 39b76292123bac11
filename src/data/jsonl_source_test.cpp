#include "data/jsonl_source.h"

#include <gtest/gtest.h>

#include "base/error.h"
#include "base/random.h"
#include "formats/test_folder.h"

namespace longspan {
namespace {

const Tokenizer kBytes = make_tokenizer("byte", false);

TEST(Jsonl, ReadsTextIdsMasksAndNames) {
  const TestFolder folder;
  const auto path = folder.write("x.jsonl",
                                 "{\"text\": \"a\\n\\u00e9\", \"url\": 3}\r\n"
                                 "\n  \t\n"
                                 "{\"input_ids\": [5, 7, 900], \"loss_mask\": [0, true, 0.5], "
                                 "\"position_ids\": [0, 1, 2], \"id\": \"seven\"}\n"
                                 "{\"input_ids\": [5, 7], \"labels\": [-100, 7], \"name\": \"n\"}");
  const JsonlSource source(path, kBytes);
  ASSERT_EQ(source.count(), 3);
  EXPECT_EQ(source.length(0), 4);
  EXPECT_EQ(source.read(0, {0, 4}, 0).tokens, (std::vector<int32_t>{'a', '\n', 0xc3, 0xa9}));
  EXPECT_EQ(source.read(0, {1, 2}, 0).tokens, (std::vector<int32_t>{'\n'}));
  EXPECT_EQ(source.name(0), path.string() + ":1");
  EXPECT_EQ(source.name(1), "seven");
  EXPECT_EQ(source.name(2), "n");
  EXPECT_EQ(source.read(1, {1, 3}, 0).tokens, (std::vector<int32_t>{7, 900}));
  EXPECT_EQ(source.read(1, {1, 3}, 0).weights, (std::vector<float>{1, 0.5}));
  EXPECT_EQ(source.read(2, {0, 2}, 0).weights, (std::vector<float>{0, 1}));
  EXPECT_EQ(source.vocabulary_bound(), 901);
}

TEST(Jsonl, AnErrorHasOneLineNumberAndPlainWords) {
  try {
    scan_jsonl("{\"text\": \"ok\"}\n\n{\"text\": \"b\"\n", kBytes, "x.jsonl");
    ADD_FAILURE() << "accepted";
  } catch (const UserError& error) {
    EXPECT_STREQ(error.what(),
                 "x.jsonl:3: not valid JSON at column 13: unexpected end of input; expected '}'");
  }
}

TEST(Jsonl, ErrorsNameFileAndLine) {
  for (const char* bad : {
           "{\"text\": \"a\"",
           "[]",
           "{\"other\": 1}",
           "{\"messages\": []}",
           "{\"text\": 5}",
           "{\"text\": \"a\", \"input_ids\": [1]}",
           "{\"text\": \"a\", \"loss_mask\": [1]}",
           "{\"input_ids\": 5}",
           "{\"input_ids\": [1, -2]}",
           "{\"input_ids\": [1.5]}",
           "{\"input_ids\": [4294967296]}",
           "{\"input_ids\": [1, 2], \"loss_mask\": [1]}",
           "{\"input_ids\": [1], \"loss_mask\": [-1]}",
           "{\"input_ids\": [1], \"loss_mask\": [1e300]}",
           "{\"input_ids\": [1], \"loss_mask\": [\"x\"]}",
           "{\"input_ids\": [1], \"loss_mask\": 1}",
           "{\"input_ids\": [1, 2], \"labels\": [2, -100]}",
           "{\"input_ids\": [1], \"labels\": [1], \"loss_mask\": [1]}",
           "{\"input_ids\": [1, 2], \"position_ids\": [0, 0]}",
           "{\"text\": \"\xff\"}",
       }) {
    SCOPED_TRACE(bad);
    try {
      scan_jsonl(std::string("{\"text\": \"ok\"}\n\n") + bad + "\n", kBytes, "FILE");
      ADD_FAILURE() << "accepted";
    } catch (const UserError& error) {
      EXPECT_EQ(std::string(error.what()).find("FILE:3: "), 0u) << error.what();
    }
  }
}

TEST(Jsonl, TokenIdsNeedNoTokenizer) {
  EXPECT_EQ(scan_jsonl("{\"input_ids\": [1, 2]}", {}, "x").lines.at(0).tokens, 2);
  EXPECT_THROW(scan_jsonl("{\"text\": \"a\"}", {}, "x"), UserError);
}

TEST(Jsonl, RandomDamageNeverCrashes) {
  const std::string good =
      "{\"text\": \"abc\"}\n{\"input_ids\": [1, 2, 3], \"loss_mask\": [0, 1, 1]}\n";
  for (uint64_t seed = 0; seed < 3000; ++seed) {
    RandomStream random(seed, "jsonl damage");
    std::string damaged = good;
    for (uint64_t count = 1 + random.below(3); count > 0; --count) {
      damaged[random.below(damaged.size())] = static_cast<char>(random.below(256));
    }
    try {
      for (const JsonlLine& line : scan_jsonl(damaged, kBytes, "x").lines) {
        EXPECT_TRUE(Range(0, static_cast<int64_t>(damaged.size())).contains(line.bytes));
      }
    } catch (const UserError&) {
    }
  }
}

}  // namespace
}  // namespace longspan
