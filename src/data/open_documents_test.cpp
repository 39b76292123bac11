#include "data/open_documents.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include "base/error.h"
#include "data/check_disjoint.h"
#include "data/expand_patterns.h"
#include "data/inspect_documents.h"
#include "data/memory_source.h"
#include "data/pack_documents.h"
#include "formats/test_folder.h"

namespace longspan {
namespace {

const OpenOptions kByteOptions{.tokenizer = make_tokenizer("byte")};

std::string refusal(const std::vector<std::string>& patterns,
                    const OpenOptions& options = kByteOptions) {
  try {
    open_documents(patterns, options);
  } catch (const UserError& error) {
    return error.what();
  }
  return "";
}

std::vector<std::string> names(const DocumentSource& source) {
  std::vector<std::string> all;
  for (int64_t idx = 0; idx < source.count(); ++idx) all.push_back(source.name(idx));
  return all;
}

TEST(OpenDocuments, PicksTheKindBySuffixAndKeepsTheOrder) {
  const TestFolder folder;
  folder.write("docs/b.txt", "two");
  folder.write("docs/a.txt", "one!");
  folder.write("more.jsonl", "{\"text\": \"x\", \"id\": \"j\"}\n");
  folder.write("g.fna", ">chr1\nACGT\n>chr2\nA\n");
  pack_documents(MemorySource({{{1, 2}, {}}}, {"packed"}), folder / "shards/s",
                 {.vocabulary_size = 10});
  const auto source =
      open_documents({(folder / "docs/*.txt").string(), (folder / "more.jsonl").string(),
                      (folder / "shards/s*").string(), (folder / "g.fna").string()},
                     kByteOptions);
  EXPECT_EQ(names(*source), (std::vector<std::string>{(folder / "docs/a.txt").string(),
                                                      (folder / "docs/b.txt").string(), "j",
                                                      "packed", "chr1", "chr2"}));
  EXPECT_EQ(document_lengths(*source), (std::vector<int64_t>{5, 4, 2, 2, 5, 2}));
  EXPECT_EQ(source->read(4, {0, 5}, 0).tokens, (std::vector<int32_t>{'A', 'C', 'G', 'T', 256}));
  EXPECT_EQ(source->fingerprints().size(), 7u);  // the shard has three files
}

TEST(OpenDocuments, AFolderIsEveryFileInIt) {
  const TestFolder folder;
  // Characters of a glob in the name of a folder mean themselves.
  folder.write("[a]*/b.txt", "two");
  folder.write("[a]*/a.txt", "one!");
  folder.write("[a]*/.hidden", "not a document");
  folder.write("[a]*/below/c.txt", "not in this folder");
  folder.write("[a]*/g.fa", ">chr1\nACGT\n");
  folder.write("[a]*/g.fa.fai", "chr1\t4\t6\t4\t5\n");
  pack_documents(MemorySource({{{1, 2}, {0.5F, 1}}}, {"packed"}), folder / "[a]*/s",
                 {.vocabulary_size = 10});
  const std::vector<std::string> expected = {(folder / "[a]*/a.txt").string(),
                                             (folder / "[a]*/b.txt").string(), "chr1", "packed"};
  EXPECT_EQ(names(*open_documents({(folder / "[a]*").string()}, kByteOptions)), expected);
  const std::string with_slash = (folder / "[a]*").string() + "/";
  EXPECT_EQ(names(*open_documents({with_slash}, kByteOptions)), expected);
  folder.write("[a]*/notes.weird", "?");
  EXPECT_NE(refusal({(folder / "[a]*").string()}).find("notes.weird"), std::string::npos);
}

TEST(OpenDocuments, ShardsByPrefixIndexOrBin) {
  const TestFolder folder;
  pack_documents(MemorySource({{{1, 2}, {}}}), folder / "s", {.vocabulary_size = 10});
  for (const char* name : {"s", "s.idx", "s.bin", "s.*", "s.{bin,idx}"}) {
    EXPECT_EQ(open_documents({(folder / name).string()}, {})->count(), 1) << name;
  }
  EXPECT_NE(refusal({(folder / "s.idx").string(), (folder / "s.bin").string()}).find("earlier"),
            std::string::npos);
}

TEST(OpenDocuments, RefusalsSayWhatToDo) {
  const TestFolder folder;
  folder.write("docs/a.txt", "one");
  folder.write("x.weird", "text");
  folder.write("empty.jsonl", "\n");
  const auto path = [&](const char* name) { return (folder / name).string(); };
  const auto expect = [](const std::string& message, const std::string& part) {
    EXPECT_NE(message.find(part), std::string::npos) << message;
  };
  expect(refusal({}), "no documents are named");
  folder.write("nested/below/a.txt", "one");
  expect(refusal({path("nested")}), "no file in this folder");
  expect(refusal({path("docs"), path("docs/a.txt")}), "earlier pattern");
  expect(refusal({path("none*.txt")}), "no such file");
  expect(refusal({"none.txt"}), std::filesystem::current_path().string());
  expect(refusal({path("**/a.txt")}), "'**'");
  expect(refusal({path("x.weird")}), "data.format");
  expect(refusal({path("docs/a.txt"), path("docs/*.txt")}), "earlier pattern");
  expect(refusal({path("empty.jsonl")}), "no documents in " + path("empty.jsonl") + "; name");
  folder.write("nothing.jsonl", "");
  expect(refusal({path("empty.jsonl"), path("nothing.jsonl")}),
         path("empty.jsonl") + " " + path("nothing.jsonl") + " (an empty file); name");
  OpenOptions as_text = kByteOptions;
  as_text.format = parse_document_format("text");
  EXPECT_EQ(open_documents({path("x.weird")}, as_text)->length(0), 5);
  EXPECT_THROW(parse_document_format("csv"), UserError);
  expect(refusal({path("docs/a.txt")}, {}), "needs a tokenizer");
  OpenOptions turned = kByteOptions;
  turned.reverse_complement = true;
  expect(refusal({path("docs/a.txt")}, turned), "no other strand");
}

TEST(OpenDocuments, TextWithNulBytesIsNoted) {
  const TestFolder folder;
  folder.write("a.txt", "one");
  EXPECT_TRUE(open_documents({(folder / "a.txt").string()}, kByteOptions)->notes().empty());
  const std::string first = folder.write("b.txt", std::string("o\0e", 3)).string();
  folder.write("c.txt", std::string("\0\0", 2));
  const auto source = open_documents({(folder / "*.txt").string()}, kByteOptions);
  EXPECT_EQ(source->count(), 3);
  EXPECT_EQ(source->notes(),
            std::vector<std::string>{"2 of 3 text files hold NUL bytes and seem to be binary (" +
                                     first + ", ...); their bytes are tokens like any"});
}

TEST(OpenDocuments, GenomeOptionsReachTheRecords) {
  const TestFolder folder;
  const std::string genome = folder.write("g.fa", ">c1\nAAAACCCC\n>c2\nAAAACCCC\n").string();
  OpenOptions options;
  options.tokenizer = make_tokenizer("nucleotide");
  options.hold_out = {"c2"};
  EXPECT_NE(refusal({genome}, options).find("hold-out"), std::string::npos);
  options.hold_out_named_by = "data.fasta.hold_out (run.toml:4)";
  options.fasta.split = Split::kTrain;
  options.hold_out = {"c3"};
  EXPECT_EQ(refusal({genome}, options),
            "data.fasta.hold_out (run.toml:4): 'c3' matches no record "
            "of the FASTA files");
  options.hold_out = {"c*"};
  EXPECT_EQ(refusal({genome}, options), "no documents in " + genome +
                                            ": data.fasta.hold_out (run.toml:4) holds out all of "
                                            "what they hold");
  options.hold_out = {"c2"};
  options.fasta.split = Split::kHeldOut;
  EXPECT_EQ(names(*open_documents({genome}, options)), (std::vector<std::string>{"c2"}));
  options.fasta.split = Split::kTrain;
  options.circular = {"c1", "d*"};
  options.circular_named_by = "data.fasta.circular (run.toml:3)";
  EXPECT_EQ(refusal({genome}, options),
            "data.fasta.circular (run.toml:3): 'd*' matches no document");
  options.circular = {"c2", "c*"};  // c2 is held out, and known nevertheless
  options.reverse_complement = true;
  const auto source = open_documents({genome}, options);
  EXPECT_EQ(names(*source), (std::vector<std::string>{"c1"}));
  bool is_ever_reversed = false;
  bool is_ever_rotated = false;
  for (int64_t epoch = 0; epoch < 20; ++epoch) {
    is_ever_reversed |= source->orientation(0, epoch).is_reversed;
    is_ever_rotated |= source->orientation(0, epoch).rotation != 0;
  }
  EXPECT_TRUE(is_ever_reversed);
  EXPECT_TRUE(is_ever_rotated);

  // The same from a packed shard, which is written as stored.
  OpenOptions plain;
  plain.tokenizer = options.tokenizer;
  pack_documents(*open_documents({genome}, plain), folder / "s", {.vocabulary_size = 6});
  OpenOptions turned;
  turned.tokenizer = options.tokenizer;
  turned.reverse_complement = true;
  const auto shard = open_documents({(folder / "s").string()}, turned);
  for (int64_t epoch = 0; epoch < 20; ++epoch) {
    const std::vector<int32_t> expected = shard->orientation(0, epoch).is_reversed
                                              ? std::vector<int32_t>{2, 2, 2, 2, 3, 3, 3, 3, 5}
                                              : std::vector<int32_t>{0, 0, 0, 0, 1, 1, 1, 1, 5};
    EXPECT_EQ(shard->read(0, {0, 9}, epoch).tokens, expected);
  }
}

TEST(OpenDocuments, AFileThatChangesDuringARunIsAnError) {
  const TestFolder folder;
  const std::string path = folder.write("a.txt", "one").string();
  const auto source = open_documents({path}, kByteOptions);
  folder.write("a.txt", "longer");
  EXPECT_THROW(source->read(0, {0, 4}, 0), UserError);
}

TEST(Fingerprint, FollowsContentAndNotTime) {
  const TestFolder folder;
  std::string content(3 << 20, 'a');
  const auto path = folder.write("a.bin", content);
  const FileFingerprint first = fingerprint_file(path);
  EXPECT_EQ(first, fingerprint_file(path));
  for (const size_t changed : {size_t{0}, content.size() - 1}) {
    std::string other = content;
    other[changed] = 'b';
    folder.write("a.bin", other);
    EXPECT_NE(first, fingerprint_file(path));
  }
  folder.write("a.bin", content);
  EXPECT_EQ(first, fingerprint_file(path));
  EXPECT_NE(combined_fingerprint({first}), combined_fingerprint({first, first}));
}

TEST(CheckDisjoint, FindsTheSameDocumentUnderAnotherName) {
  const MemorySource train({{{1, 2, 3}, {}}, {{4, 5}, {}}, {{}, {}}}, {"a", "b", "c"});
  const MemorySource other({{{1, 2, 4}, {}}, {{}, {}}}, {"x", "y"});
  const MemorySource same({{{9}, {}}, {{4, 5}, {}}}, {"x", "copy"});
  EXPECT_NO_THROW(check_disjoint(train, other));
  try {
    check_disjoint(train, same);
    FAIL();
  } catch (const UserError& error) {
    EXPECT_NE(std::string(error.what()).find("document b is also evaluated, as copy"),
              std::string::npos);
  }
}

TEST(InspectDocuments, FiguresOfAKnownSet) {
  std::vector<DocumentContent> documents(201);  // 199 of 10 tokens, one of 1000, one empty
  for (size_t idx = 0; idx < 199; ++idx) documents[idx].tokens.assign(10, 1);
  documents[199].tokens.assign(1000, 1);
  const MemorySource source(std::move(documents));
  const DocumentReport report = inspect_documents(source, 500);
  EXPECT_EQ(report.documents, 200);
  EXPECT_EQ(report.documents_empty, 1);
  EXPECT_EQ(report.tokens, 2990);
  EXPECT_EQ(report.length_percentiles.front(), (std::pair<int, int64_t>{0, 10}));
  EXPECT_EQ(report.length_percentiles.at(7), (std::pair<int, int64_t>{99, 10}));
  EXPECT_EQ(report.length_percentiles.back(), (std::pair<int, int64_t>{100, 1000}));
  EXPECT_EQ(report.longest_name, "document 199");
  EXPECT_DOUBLE_EQ(report.sum_of_squares, 199 * 100 + 1e6);
  EXPECT_DOUBLE_EQ(report.token_weighted_tokens, (199 * 100 + 1e6) / 2990);
  EXPECT_DOUBLE_EQ(report.longest_percent_tokens, 100.0 * 1010 / 2990);  // the longest two
  EXPECT_DOUBLE_EQ(report.longest_percent_work, 100.0 * (500500 + 55) / (199 * 55 + 500500));
  EXPECT_DOUBLE_EQ(report.longest_document_work, 100.0 * 500500 / (199 * 55 + 500500));
  EXPECT_EQ(report.documents_overlong, 1);
  EXPECT_EQ(report.tokens_overlong, 1000);
  EXPECT_NE(format_report(report).find("1 documents of 1,000 tokens (33.4 % of all) are longer"),
            std::string::npos);
  EXPECT_EQ(report.micro_batches, 4);
  EXPECT_DOUBLE_EQ(report.fill_percent, 100.0 * 1990 / 2000);
  EXPECT_NE(format_report(report).find("2,990"), std::string::npos);
  EXPECT_EQ(report_json(report)["length_percentiles"]["p50"], 10);
  EXPECT_EQ(inspect_documents(source, 5).documents_overlong, 200);
  EXPECT_EQ(inspect_documents(source, 5).tokens_overlong, 2990);
  EXPECT_EQ(inspect_documents(MemorySource(std::vector<DocumentContent>{}), 5).documents, 0);
}

}  // namespace
}  // namespace longspan
