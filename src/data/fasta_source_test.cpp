#include "data/fasta_source.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <set>
#include <sstream>

#include "base/error.h"
#include "base/random.h"
#include "data/strand_source.h"
#include "formats/test_folder.h"

namespace longspan {
namespace {

// A record as plain text, upper and lower case, U already read as T.
struct PlainRecord {
  std::string name;
  std::string bases;
};

std::vector<PlainRecord> random_records(RandomStream& random, uint64_t longest) {
  std::vector<PlainRecord> records(random.below(6));
  for (size_t idx = 0; idx < records.size(); ++idx) {
    records[idx].name = text("record", idx);
    while (records[idx].bases.size() < random.below(longest)) {
      // Runs, so that stretches of N and of soft mask come in all lengths.
      const char base = "ACGTacgtNnR"[random.below(11)];
      records[idx].bases.append(random.below(8) == 0 ? random.below(20) : 1, base);
    }
  }
  return records;
}

std::string write_fasta(const std::vector<PlainRecord>& records, RandomStream& random) {
  const std::string end = random.below(2) == 0 ? "\n" : "\r\n";
  std::string content = random.below(3) == 0 ? end : "";
  for (const PlainRecord& record : records) {
    content += ">" + record.name + (random.below(2) == 0 ? " some words" : "") + end;
    for (size_t begin = 0; begin < record.bases.size();) {
      const size_t width = 1 + random.below(12);
      content += record.bases.substr(begin, width) + (random.below(6) == 0 ? "  " : "") + end;
      if (random.below(10) == 0) content += end;
      begin += width;
    }
  }
  if (!content.empty() && random.below(2) == 0) content.pop_back();
  return content;
}

TEST(FastaParser, EqualsTheRecordsItWasWrittenFrom) {
  for (uint64_t seed = 0; seed < 400; ++seed) {
    SCOPED_TRACE(seed);
    RandomStream random(seed, "fasta parser");
    const std::vector<PlainRecord> records = random_records(random, 200);
    const std::string file = write_fasta(records, random);
    FastaParser parser("x");
    for (size_t begin = 0; begin < file.size();) {  // pieces cut anywhere
      const size_t size = 1 + random.below(40);
      parser.feed(std::string_view(file).substr(begin, size));
      begin += size;
    }
    const FastaContent content = parser.finish();
    ASSERT_EQ(content.records.size(), records.size());
    int64_t n = 0, ambiguous = 0, soft = 0;
    for (size_t idx = 0; idx < records.size(); ++idx) {
      EXPECT_EQ(content.records[idx].name, records[idx].name);
      const Range& bases = content.records[idx].bases;
      ASSERT_EQ(bases.size(), static_cast<int64_t>(records[idx].bases.size()));
      for (int64_t position = 0; position < bases.size(); ++position) {
        const char letter = records[idx].bases[static_cast<size_t>(position)];
        const bool is_lower = letter >= 'a';
        const size_t id = std::string_view("ACGTN").find(static_cast<char>(letter & ~32));
        const MaskedBase base = content.store[bases.begin + position];
        EXPECT_EQ(base.base, id == std::string_view::npos ? kBaseN : static_cast<Nucleotide>(id));
        EXPECT_EQ(base.is_soft_masked, is_lower);
        n += base.base == kBaseN;
        ambiguous += letter == 'R';
        soft += is_lower;
      }
    }
    EXPECT_EQ(content.n_bases, n);
    EXPECT_EQ(content.ambiguous_bases, ambiguous);
    EXPECT_EQ(content.soft_masked_bases, soft);
  }
}

TEST(FastaParser, ErrorsNameTheLine) {
  const auto refuse = [](const std::string& content, const std::string& where) {
    try {
      FastaParser parser("x.fa");
      parser.feed(content);
      parser.finish();
      ADD_FAILURE() << "accepted " << content;
    } catch (const UserError& error) {
      EXPECT_EQ(std::string(error.what()).find(where), 0u) << error.what();
    }
  };
  refuse("\n\nACGT\n>a\nACGT\n", "x.fa:3: text before the first '>'");
  refuse("; comment\n>a\nACGT\n", "x.fa:1: text before");
  refuse(">a\nACGT\nACJT\n", "x.fa:3: 'J'");
  refuse(">a\nAC-T\n", "x.fa:2: '-'");
  refuse(">a\nAC GT\n", "x.fa:2: white space");
  refuse(">a\nACGT\n> \nACGT\n", "x.fa:3: a record header without a name");
  refuse(">", "x.fa:1: a record header without a name");
  refuse(">a\nACGT\n>b\n\n>a more\nA\n", "x.fa:5: record 'a' was already on line 1");
}

FastaSource open(const TestFolder& folder, const std::string& content, const FastaOptions& options,
                 HoldOut& hold_out, const Tokenizer& tokenizer) {
  return FastaSource(folder.write("x.fa", content), tokenizer, options, hold_out);
}

std::string letters(const DocumentContent& content) {
  std::string all;
  for (const int32_t id : content.tokens) all += "ACGTN$"[id];
  return all;
}

std::string whole(const DocumentSource& source, int64_t document, int64_t epoch = kAsStored) {
  return letters(source.read(document, {0, source.length(document)}, epoch));
}

std::vector<std::string> names(const DocumentSource& source) {
  std::vector<std::string> all;
  for (int64_t idx = 0; idx < source.count(); ++idx) all.push_back(source.name(idx));
  return all;
}

const Tokenizer kPlain = make_tokenizer("nucleotide", false);

TEST(FastaSource, WeightsOfNAndSoftMask) {
  const TestFolder folder;
  HoldOut none;
  const FastaSource source = open(folder, ">a\nACgtnN\n>b\nAC\n", {.soft_mask_weight = 0.25F}, none,
                                  make_tokenizer("nucleotide"));
  EXPECT_EQ(whole(source, 0), "ACGTNN$");
  EXPECT_EQ(source.read(0, {0, 7}, 0).weights, (std::vector<float>{1, 1, 0.25, 0.25, 0, 0, 1}));
  EXPECT_EQ(source.read(0, {3, 5}, 0).weights, (std::vector<float>{0.25, 0}));
  EXPECT_TRUE(source.read(0, {0, 2}, 0).weights.empty());
  EXPECT_TRUE(source.read(1, {0, 3}, 0).weights.empty());
  EXPECT_THROW(open(folder, ">a\nA\n", {.mask_n_weight = -1}, none, kPlain), UserError);
}

TEST(FastaSource, BytesInPlaceOfBasesAreNoted) {
  const TestFolder folder;
  HoldOut none;
  const std::string sequence = ">a\nAC\n";
  const FastaSource bytes = open(folder, sequence, {}, none, make_tokenizer("byte"));
  ASSERT_EQ(bytes.notes().size(), 1u);
  EXPECT_NE(bytes.notes()[0].find("nucleotide"), std::string::npos) << bytes.notes()[0];
  EXPECT_TRUE(open(folder, sequence, {}, none, make_tokenizer("nucleotide")).notes().empty());
}

TEST(FastaSource, LongRunsOfNEndDocuments) {
  const TestFolder folder;
  HoldOut none;
  const FastaSource source = open(folder, ">a\nNNNACNNGTNNNCC\n>b\nNNNN\n>c\nA\n>d\n>e\nNACNNNN\n",
                                  {.max_n_run = 2}, none, kPlain);
  EXPECT_EQ(names(source), (std::vector<std::string>{"a:3-9", "a:12-14", "c", "e:0-3"}));
  EXPECT_EQ(whole(source, 0), "ACNNGT");
  EXPECT_EQ(whole(source, 1), "CC");
  EXPECT_EQ(whole(source, 3), "NAC");
  const std::vector<std::string> notes = source.notes();
  ASSERT_EQ(notes.size(), 2u);
  EXPECT_NE(notes[0].find("4 runs of more than 2 N (14 bases)"), std::string::npos) << notes[0];
  EXPECT_NE(notes[1].find("1 records without sequence"), std::string::npos) << notes[1];
}

// Documents are what a regular-expression view of each record gives: cut at runs of N that are too
// long.
TEST(FastaSource, RandomRecordsEqualANaiveCut) {
  for (uint64_t seed = 0; seed < 200; ++seed) {
    SCOPED_TRACE(seed);
    RandomStream random(seed, "naive cut");
    const std::vector<PlainRecord> records = random_records(random, 100);
    const auto longest_run = static_cast<int64_t>(random.below(10));
    std::vector<std::string> expected;
    for (const PlainRecord& record : records) {
      std::string bases;
      for (const char letter : record.bases) {
        bases += std::string_view("ACGT").find(static_cast<char>(letter & ~32)) == std::string::npos
                     ? 'N'
                     : static_cast<char>(letter & ~32);
      }
      std::string document;
      for (size_t at = 0; at < bases.size();) {
        size_t end = at;
        while (end < bases.size() && bases[end] == 'N') ++end;
        if (longest_run > 0 && static_cast<int64_t>(end - at) > longest_run) {
          if (!document.empty()) expected.push_back(document);
          document.clear();
        } else {
          document += bases.substr(at, end - at);
        }
        if (end < bases.size()) document += bases[end];
        at = end + 1;
      }
      if (!document.empty()) expected.push_back(document);
    }
    const TestFolder folder;
    HoldOut none;
    const FastaSource source =
        open(folder, write_fasta(records, random), {.max_n_run = longest_run}, none, kPlain);
    std::vector<std::string> documents;
    for (int64_t idx = 0; idx < source.count(); ++idx) documents.push_back(whole(source, idx));
    EXPECT_EQ(documents, expected);
  }
}

TEST(HoldOut, TrainingAndEvaluationShareNoBase) {
  const TestFolder folder;
  const auto bed =
      folder.write("x.bed", "# regions\ntrack name=x\nb\t2\t5\tname\t0\r\n\nb 4 6\nc 0 3\n");
  const std::string genome = ">a\nACGT\n>b\nAACCGGTT\n>c\nGGG\n>d1\nA\n>d2\nC\n>e\nTT\n";
  const auto split = [&](Split part) {
    HoldOut hold_out({"a", bed.string(), "d?"});
    const FastaSource source = open(folder, genome, {.split = part}, hold_out, kPlain);
    hold_out.check_all_used();
    std::map<std::string, std::string> documents;
    for (int64_t idx = 0; idx < source.count(); ++idx) {
      documents[source.name(idx)] = whole(source, idx);
    }
    return documents;
  };
  EXPECT_EQ(split(Split::kTrain),
            (std::map<std::string, std::string>{{"b:0-2", "AA"}, {"b:6-8", "TT"}, {"e", "TT"}}));
  EXPECT_EQ(split(Split::kHeldOut),
            (std::map<std::string, std::string>{
                {"a", "ACGT"}, {"b:2-6", "CCGG"}, {"c", "GGG"}, {"d1", "A"}, {"d2", "C"}}));
}

TEST(HoldOut, WhatMeetsNoRecordIsAnError) {
  const TestFolder folder;
  const auto refuse = [&](const std::vector<std::string>& globs, const std::string& bed,
                          const std::string& reason) {
    try {
      std::vector<std::string> entries = globs;
      if (!bed.empty()) entries.push_back(folder.write("x.bed", bed).string());
      HoldOut hold_out(entries);
      open(folder, ">a\nACGT\n", {.split = Split::kTrain}, hold_out, kPlain);
      hold_out.check_all_used();
      ADD_FAILURE() << "accepted";
    } catch (const UserError& error) {
      EXPECT_NE(std::string(error.what()).find(reason), std::string::npos) << error.what();
    }
  };
  refuse({"a", "chr*"}, "", "'chr*' matches no record");
  refuse({}, "a 1 2\nz 0 1\n", "x.bed:2: record 'z'");
  refuse({"absent.bed"}, "", "hold-out: cannot read absent.bed");
  refuse({}, "a 1 5\n", "x.bed:1: ends at 5");
  refuse({}, "a 2 2\n", "x.bed:1: a line must be");
  refuse({}, "a 1\n", "x.bed:1: a line must be");
  refuse({}, "a -1 2\n", "x.bed:1: a line must be");
  refuse({}, "\n", "holds no region");
}

char paired(char base) {
  const size_t at = std::string_view("ACGTN").find(base);
  return "TGCAN"[at];
}

TEST(StrandSource, TurnsTokensAndWeightsAndLeadsBackToTheFile) {
  for (uint64_t seed = 0; seed < 60; ++seed) {
    SCOPED_TRACE(seed);
    RandomStream random(seed, "strands");
    std::vector<PlainRecord> records = random_records(random, 60);
    std::erase_if(records, [](const PlainRecord& record) { return record.bases.empty(); });
    const TestFolder folder;
    HoldOut none;
    const bool ends = random.below(2) == 0;
    const Tokenizer tokenizer = make_tokenizer("nucleotide", ends);
    const FastaOptions options{.soft_mask_weight = 0.5F};
    auto inner = std::make_unique<FastaSource>(folder.write("x.fa", write_fasta(records, random)),
                                               tokenizer, options, none);
    const FastaSource& forward = *inner;
    std::vector<bool> is_circular;
    for (size_t idx = 0; idx < records.size(); ++idx) is_circular.push_back(random.below(2) == 0);
    const StrandSource source(std::move(inner), tokenizer, {seed, random.below(4) != 0},
                              is_circular);
    for (int64_t document = 0; document < source.count(); ++document) {
      const int64_t length = source.length(document);
      const int64_t epoch = static_cast<int64_t>(random.below(3));
      const DocumentContent plain = forward.read(document, {0, length}, epoch);
      const DocumentContent turned = source.read(document, {0, length}, epoch);
      const Orientation orientation = source.orientation(document, epoch);
      const std::string plain_letters = letters(plain);
      for (int64_t position = 0; position < length; ++position) {
        const auto there = static_cast<size_t>(forward_position(orientation, position));
        const bool is_end = ends && position == length - 1;
        const char expected = orientation.is_reversed && !is_end ? paired(plain_letters[there])
                                                                 : plain_letters[there];
        EXPECT_EQ(letters(turned)[static_cast<size_t>(position)], expected);
        const float weight = plain.weights.empty() ? 1 : plain.weights[there];
        EXPECT_EQ(turned.weights.empty() ? 1 : turned.weights[static_cast<size_t>(position)],
                  weight);
      }
      // Any part reads the same as that part of the whole.
      const int64_t begin = random.between(0, length);
      const Range range{begin, random.between(begin, length)};
      const DocumentContent part = source.read(document, range, epoch);
      EXPECT_EQ(letters(part), letters(turned).substr(static_cast<size_t>(range.begin),
                                                      static_cast<size_t>(range.size())));
      for (size_t idx = 0; idx < part.weights.size(); ++idx) {
        EXPECT_EQ(part.weights[idx], turned.weights[static_cast<size_t>(range.begin) + idx]);
      }
      EXPECT_EQ(whole(source, document), plain_letters);  // as stored
      if (!is_circular[static_cast<size_t>(document)]) {
        EXPECT_EQ(orientation.rotation, 0);
      }
    }
  }
}

TEST(StrandSource, ChoicesVaryWithDocumentAndEpochAndSeed) {
  const TestFolder folder;
  std::string content;
  for (int idx = 0; idx < 200; ++idx) content += text(">r", idx, "\nAAAAAAAAAACCCCCCCCCC\n");
  folder.write("x.fa", content);
  const auto choices = [&](uint64_t seed, int64_t epoch) {
    HoldOut none;
    const StrandSource source(
        std::make_unique<FastaSource>(folder / "x.fa", kPlain, FastaOptions{}, none), kPlain,
        {seed, true}, std::vector<bool>(200, true));
    std::string drawn;
    for (int64_t document = 0; document < source.count(); ++document) {
      const Orientation orientation = source.orientation(document, epoch);
      drawn += text(orientation.is_reversed, ' ', orientation.rotation, '\n');
    }
    return drawn;
  };
  const std::string first = choices(1, 0);
  EXPECT_EQ(first, choices(1, 0));
  EXPECT_NE(first, choices(1, 1));
  EXPECT_NE(first, choices(2, 0));
  const auto reversed = std::count(first.begin(), first.end(), '1');
  EXPECT_GT(reversed, 60);  // both strands occur
  std::set<std::string> lines;
  std::istringstream stream(first);
  for (std::string line; std::getline(stream, line);) lines.insert(line);
  EXPECT_GT(lines.size(), 30u);  // of 40 possible
}

}  // namespace
}  // namespace longspan
