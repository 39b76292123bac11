#include "data/fasta_index.h"

#include <gtest/gtest.h>
#include <zlib.h>

#include "base/error.h"
#include "base/random.h"
#include "data/fasta_source.h"
#include "formats/test_folder.h"

namespace longspan {
namespace {

std::string refusal(const std::function<void()>& action) {
  try {
    action();
  } catch (const UserError& error) {
    return error.what();
  }
  return "";
}

void expect_parts(const std::string& message, const std::vector<std::string>& parts) {
  for (const std::string& part : parts) {
    EXPECT_NE(message.find(part), std::string::npos) << "'" << part << "' not in: " << message;
  }
}

TEST(FastaIndex, ColumnsAreThoseOfSamtools) {
  const TestFolder folder;
  // What `samtools faidx` writes for these files.
  const auto lf =
      folder.write("lf.fa", ">one first\nACGTA\nCGT\n\n>two\nAC\n>none\n>last\nACG\nACG");
  EXPECT_EQ(fasta_index_text(index_fasta(lf)),
            "one\t8\t11\t5\t6\ntwo\t2\t27\t2\t3\nnone\t0\t36\t0\t0\nlast\t6\t42\t3\t4\n");
  const auto crlf = folder.write("crlf.fa", "\r\n>a\r\nACGT\r\nAC\r\n>b\r\nA\r\n");
  EXPECT_EQ(fasta_index_text(index_fasta(crlf)), "a\t6\t6\t4\t6\nb\t1\t20\t1\t3\n");
}

// The meaning of the columns: base p of a record stands at offset + p / line_bases * line_bytes +
// ...
TEST(FastaIndex, LeadsToEveryBase) {
  for (uint64_t seed = 0; seed < 50; ++seed) {
    SCOPED_TRACE(seed);
    RandomStream random(seed, "fasta index");
    const TestFolder folder;
    const std::string end = random.below(2) == 0 ? "\n" : "\r\n";
    std::vector<std::string> records(1 + random.below(5));
    std::string content;
    for (size_t idx = 0; idx < records.size(); ++idx) {
      content += text(">r", idx, random.below(2) == 0 ? " words" : "", end);
      for (int64_t left = random.between(0, 200); left > 0; --left) {
        records[idx] += "ACGTNacgtn"[random.below(10)];
      }
      const size_t width = 1 + random.below(30);
      for (size_t begin = 0; begin < records[idx].size(); begin += width) {
        content += records[idx].substr(begin, width) + end;
      }
    }
    const auto entries = index_fasta(folder.write("x.fa", content));
    ASSERT_EQ(entries.size(), records.size());
    for (size_t idx = 0; idx < records.size(); ++idx) {
      const FastaIndexEntry& entry = entries[idx];
      ASSERT_EQ(entry.bases, std::ssize(records[idx]));
      for (int64_t base = 0; base < entry.bases; ++base) {
        const int64_t at =
            entry.offset + base / entry.line_bases * entry.line_bytes + base % entry.line_bases;
        ASSERT_EQ(content[static_cast<size_t>(at)], records[idx][static_cast<size_t>(base)]);
      }
    }
    EXPECT_EQ(parse_fasta_index(fasta_index_text(entries), "x.fa.fai"), entries);
  }
}

TEST(FastaIndex, UnequalLinesAndPlainGzipHaveNone) {
  const TestFolder folder;
  const auto index = [&](const char* content) {
    const auto path = folder.write("x.fa", content);
    return refusal([&] { index_fasta(path); });
  };
  expect_parts(index(">a\nACGT\nACGTA\n"), {"x.fa:3", "'a'", "equally long"});
  expect_parts(index(">a\nACGT\nAC\nACGT\n"), {"x.fa:4"});
  expect_parts(index(">a\nACGT\n\nACGT\n"), {"x.fa:4"});
  expect_parts(index(">a\nACGT\nACGT \nAC\n"), {"x.fa:4"});
  expect_parts(index(">a\nACGT\nAC!T\n"), {"x.fa:3", "'!'"});
  EXPECT_EQ(index(""), "");

  const std::string path = (folder / "x.fa.gz").string();
  gzFile file = gzopen(path.c_str(), "wb");
  gzputs(file, ">a\nACGT\n");
  gzclose(file);
  expect_parts(refusal([&] { index_fasta(path); }), {"x.fa.gz", "bgzip"});
}

TEST(FastaIndex, AnIndexThatIsNotOfTheFileIsAnError) {
  const TestFolder folder;
  const auto fasta = folder.write("x.fa", ">a\nACGT\nAC\n>b\nACG\n");
  HoldOut none;
  const auto open = [&](const std::string& index) {
    folder.write("x.fa.fai", index);
    return refusal([&] { FastaSource(fasta, make_tokenizer("nucleotide"), {}, none); });
  };
  EXPECT_EQ(open("a\t6\t3\t4\t5\nb\t3\t14\t3\t4\n"), "");
  EXPECT_EQ(open("a\t6\t3\t4\t5\r\nb\t3\t14\t3\t4\r\n"), "");
  expect_parts(open("a\t6\t3\t4\t5\nb\t4\t14\t4\t5\n"),
               {"x.fa.fai:2", "'b' of 4 bases", "'b' of 3", "data index --overwrite"});
  expect_parts(open("a\t6\t3\t4\t5\nc\t3\t14\t3\t4\n"), {"x.fa.fai:2", "'c'"});
  expect_parts(open("a\t6\t3\t4\t5\n"), {"x.fa.fai:2", "1 records, in the file 2"});
  expect_parts(open("a\t6\t3\t4\n"), {"x.fa.fai:1", "four numbers"});
  expect_parts(open("a\t6\t3\t4\t5\t\n"), {"x.fa.fai:1", "four numbers"});
  expect_parts(open("a\tsix\t3\t4\t5\n"), {"x.fa.fai:1", "'six'"});
  expect_parts(open("a\t-6\t3\t4\t5\n"), {"x.fa.fai:1", "'-6'"});
}

}  // namespace
}  // namespace longspan
