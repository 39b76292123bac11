#include "data/tokenizer.h"

#include <gtest/gtest.h>

#include "base/error.h"

namespace longspan {
namespace {

using Ids = std::vector<int32_t>;

TEST(Tokenizer, ByteKeepsEveryByteAndEndsDocuments) {
  const Tokenizer tokenizer = make_tokenizer("byte");
  EXPECT_EQ(tokenizer.vocabulary_size(), 257);
  EXPECT_EQ(tokenizer.encode(std::string("a\0\xff", 3), ""), (Ids{97, 0, 255, 256}));
  EXPECT_EQ(tokenizer.encode("", ""), Ids{});
  const Tokenizer plain = make_tokenizer("byte", false);
  EXPECT_EQ(plain.vocabulary_size(), 256);
  EXPECT_EQ(plain.encode("ab", ""), (Ids{97, 98}));
  EXPECT_FALSE(plain.end_of_document());
}

TEST(Tokenizer, NucleotideReadsTheIupacAlphabet) {
  const Tokenizer tokenizer = make_tokenizer("nucleotide");
  EXPECT_EQ(tokenizer.vocabulary_size(), 6);
  EXPECT_EQ(tokenizer.encode("ACGTNU acgtnu\r\nRY", ""),
            (Ids{0, 1, 2, 3, 4, 3, 0, 1, 2, 3, 4, 3, 4, 4, 5}));
  EXPECT_THROW(tokenizer.encode("ACXG", "seq"), UserError);
  EXPECT_THROW(tokenizer.encode("AC-G", "seq"), UserError);
}

TEST(Tokenizer, EncodedLengthIsTheLengthOfTheEncoding) {
  for (const char* name : {"byte", "nucleotide"}) {
    for (const bool ends : {false, true}) {
      const Tokenizer tokenizer = make_tokenizer(name, ends);
      for (const char* document : {"", "A", "AC GT\n", "\n"}) {
        EXPECT_EQ(tokenizer.encoded_length(document, ""),
                  static_cast<int64_t>(tokenizer.encode(document, "").size()));
      }
    }
  }
}

TEST(Tokenizer, ComplementPairsBasesAndIsItsOwnInverse) {
  for (const char* name : {"byte", "nucleotide"}) {
    const Tokenizer tokenizer = make_tokenizer(name);
    EXPECT_EQ(tokenizer.complement(tokenizer.base_id(kBaseA)), tokenizer.base_id(kBaseT));
    EXPECT_EQ(tokenizer.complement(tokenizer.base_id(kBaseG)), tokenizer.base_id(kBaseC));
    EXPECT_EQ(tokenizer.complement(tokenizer.base_id(kBaseN)), tokenizer.base_id(kBaseN));
    EXPECT_EQ(tokenizer.complement(*tokenizer.end_of_document()), *tokenizer.end_of_document());
  }
  const Tokenizer bytes = make_tokenizer("byte");
  EXPECT_EQ(bytes.complement('a'), 't');
  for (int32_t id = 0; id < 257; ++id) {
    if (id == 'U' || id == 'u') continue;  // reads as T
    EXPECT_EQ(bytes.complement(bytes.complement(id)), id);
  }
}

TEST(Tokenizer, UnknownNameSaysWhatThereIs) {
  EXPECT_THROW(make_tokenizer("bpe"), UserError);
}

}  // namespace
}  // namespace longspan
