#include "data/packer.h"

#include <gtest/gtest.h>

#include <chrono>
#include <cmath>
#include <iostream>
#include <map>

#include "base/error.h"
#include "base/random.h"
#include "data/memory_source.h"
#include "data/micro_batch.h"

namespace longspan {
namespace {

// Lengths as unequal as real documents: many short, few long, some empty.
std::vector<int64_t> random_lengths(RandomStream& random, int64_t longest) {
  std::vector<int64_t> lengths(1 + random.below(120));
  for (int64_t& length : lengths) {
    length = random.below(20) == 0 ? 0
                                   : 1 + static_cast<int64_t>(static_cast<double>(longest - 1) *
                                                              std::pow(random.uniform(), 4));
  }
  lengths[0] = 1;  // never all empty
  return lengths;
}

struct Case {
  std::vector<int64_t> lengths;
  PackOptions options;
};

Case random_case(uint64_t seed) {
  RandomStream random(seed, "packer case");
  Case drawn;
  const int64_t longest = random.between(1, 300);
  drawn.lengths = random_lengths(random, longest);
  drawn.options.seed = random.next();
  drawn.options.overlong = static_cast<Overlong>(random.below(3));
  drawn.options.micro_batch_tokens = drawn.options.overlong == Overlong::kError
                                         ? random.between(longest, 2 * longest)
                                         : random.between(1, 2 * longest);
  drawn.options.shuffle = random.below(4) != 0;
  return drawn;
}

TEST(Packer, EveryTokenExactlyOnceAndNoMicroBatchTooLarge) {
  for (uint64_t seed = 0; seed < 500; ++seed) {
    SCOPED_TRACE(seed);
    const Case drawn = random_case(seed);
    const EpochPlan plan = plan_epoch(drawn.lengths, drawn.options, 0);
    std::map<int64_t, std::vector<Range>> seen;
    int64_t tokens = 0;
    for (int64_t batch = 0; batch < plan.micro_batches(); ++batch) {
      int64_t batch_tokens = 0;
      for (const DocumentPiece& piece : plan.pieces(batch)) {
        EXPECT_FALSE(piece.range.empty());
        seen[piece.document].push_back(piece.range);
        batch_tokens += piece.range.size();
      }
      EXPECT_GT(batch_tokens, 0);
      EXPECT_LE(batch_tokens, drawn.options.micro_batch_tokens);
      tokens += batch_tokens;
    }
    const PackReport& report = plan.report();
    EXPECT_EQ(report.tokens_used, tokens);
    EXPECT_EQ(report.documents_used, static_cast<int64_t>(seen.size()));
    int64_t empty = 0, skipped = 0, skipped_tokens = 0, split = 0, pieces = 0;
    for (size_t idx = 0; idx < drawn.lengths.size(); ++idx) {
      const int64_t length = drawn.lengths[idx];
      const auto found = seen.find(static_cast<int64_t>(idx));
      const bool is_overlong = length > drawn.options.micro_batch_tokens;
      if (length == 0 || (is_overlong && drawn.options.overlong == Overlong::kSkip)) {
        EXPECT_EQ(found, seen.end());
        ++(length == 0 ? empty : skipped);
        skipped_tokens += length;
        continue;
      }
      ASSERT_NE(found, seen.end());
      EXPECT_EQ(total_size(found->second), length);
      EXPECT_EQ(normalize(found->second), (std::vector<Range>{{0, length}}));
      EXPECT_EQ(found->second.size() > 1, is_overlong);
      split += is_overlong;
      if (is_overlong) pieces += static_cast<int64_t>(found->second.size());
    }
    EXPECT_EQ(report.documents_empty, empty);
    EXPECT_EQ(report.documents_skipped, skipped);
    EXPECT_EQ(report.tokens_skipped, skipped_tokens);
    EXPECT_EQ(report.documents_split, split);
    EXPECT_EQ(report.split_pieces, pieces);
  }
}

std::vector<std::vector<DocumentPiece>> epoch_pieces(const EpochPlan& plan) {
  std::vector<std::vector<DocumentPiece>> batches;
  for (int64_t batch = 0; batch < plan.micro_batches(); ++batch) {
    const auto pieces = plan.pieces(batch);
    batches.emplace_back(pieces.begin(), pieces.end());
  }
  return batches;
}

TEST(Packer, OrderFollowsFromSeedAndEpochAlone) {
  RandomStream random(7, "packer order");
  const std::vector<int64_t> lengths = random_lengths(random, 100);
  const PackOptions options{.seed = 5, .micro_batch_tokens = 150};
  PackOptions other_seed = options;
  other_seed.seed = 6;
  const auto first = epoch_pieces(plan_epoch(lengths, options, 0));
  EXPECT_EQ(first, epoch_pieces(plan_epoch(lengths, options, 0)));
  EXPECT_NE(first, epoch_pieces(plan_epoch(lengths, options, 1)));
  EXPECT_NE(first, epoch_pieces(plan_epoch(lengths, other_seed, 0)));
}

// The order is part of what a checkpoint promises: this value may change only with a note in the
// changelog, since a run resumed across the change would see other data.
TEST(Packer, OrderIsTheSameInEveryVersion) {
  std::vector<int64_t> lengths;
  for (int64_t idx = 0; idx < 1000; ++idx) lengths.push_back(1 + idx * idx % 700);
  const EpochPlan plan = plan_epoch(lengths, {.seed = 1, .micro_batch_tokens = 1000}, 3);
  std::string all;
  for (const auto& batch : epoch_pieces(plan)) {
    for (const DocumentPiece& piece : batch) all += text(piece.document, piece.range, ' ');
    all += '\n';
  }
  EXPECT_EQ(hash_bytes(all), 13052426724439563679ULL) << plan.report().describe();
}

TEST(Packer, WithoutShufflingDocumentsComeInOrder) {
  const std::vector<int64_t> lengths{5, 5, 5, 5, 5, 5};
  const auto batches =
      epoch_pieces(plan_epoch(lengths, {.micro_batch_tokens = 10, .shuffle = false}, 0));
  int64_t expected = 0;
  for (const auto& batch : batches) {
    for (const DocumentPiece& piece : batch) EXPECT_EQ(piece.document, expected++);
  }
  EXPECT_EQ(expected, 6);
}

TEST(Packer, ResumesExactlyFromEveryCursor) {
  for (uint64_t seed = 0; seed < 60; ++seed) {
    SCOPED_TRACE(seed);
    const Case drawn = random_case(seed);
    Packer packer(drawn.lengths, drawn.options);
    std::vector<DataCursor> cursors;
    std::vector<std::vector<DocumentPiece>> sequence;
    const int64_t steps = 2 * packer.epoch_plan().micro_batches() + 3;
    for (int64_t step = 0; step < steps; ++step) {
      cursors.push_back(packer.cursor());
      sequence.push_back(packer.next().pieces);
    }
    RandomStream random(seed, "resume");
    for (int trial = 0; trial < 5; ++trial) {
      const size_t at = random.below(cursors.size());
      Packer resumed(drawn.lengths, drawn.options);
      resumed.seek(cursors[at]);
      for (size_t step = at; step < sequence.size(); ++step) {
        ASSERT_EQ(resumed.next().pieces, sequence[step]) << "from " << at << ", step " << step;
      }
    }
  }
}

TEST(Packer, RefusesACursorOfOtherData) {
  Packer packer({10, 10}, {.micro_batch_tokens = 10});
  packer.seek({4, 2});
  EXPECT_EQ(packer.next().epoch, 5);
  EXPECT_THROW(packer.seek({0, 3}), UserError);
  EXPECT_THROW(packer.seek({0, -1}), UserError);
  EXPECT_THROW(packer.seek({-1, 0}), UserError);
}

TEST(Packer, OverlongErrorNamesDocumentLengthAndChoices) {
  try {
    plan_epoch(std::vector<int64_t>{3, 99}, {.micro_batch_tokens = 10}, 0,
               [](int64_t document) { return text("page-", document); });
    FAIL();
  } catch (const UserError& error) {
    for (const char* part : {"page-1", "99", "10", "\"skip\"", "\"split\"", "micro_batch_tokens"}) {
      EXPECT_NE(std::string(error.what()).find(part), std::string::npos) << error.what();
    }
  }
}

TEST(Packer, NothingToTrainOnIsAnError) {
  const PackOptions options{.micro_batch_tokens = 10, .overlong = Overlong::kSkip};
  EXPECT_THROW(plan_epoch({}, options, 0), UserError);
  EXPECT_THROW(plan_epoch(std::vector<int64_t>{0, 0}, options, 0), UserError);
  EXPECT_THROW(plan_epoch(std::vector<int64_t>{11}, options, 0), UserError);
  try {
    plan_epoch(std::vector<int64_t>{0, 11, 12}, options, 0,
               [](int64_t document) { return text("page-", document); });
    FAIL();
  } catch (const UserError& error) {
    EXPECT_STREQ(error.what(),
                 "no document is left to use: of 3 documents, 1 are empty (page-0) and 2 are "
                 "longer than a micro-batch of 10 tokens (page-1, ...); name other documents, or "
                 "raise batch.micro_batch_tokens");
  }
  EXPECT_THROW(parse_overlong("truncate"), UserError);
  EXPECT_EQ(parse_overlong("split"), Overlong::kSplit);
}

TEST(Packer, SaysHowMuchIsLeftOut) {
  const PackOptions options{.micro_batch_tokens = 10, .overlong = Overlong::kSkip};
  const PackReport report = plan_epoch(std::vector<int64_t>{5, 0, 11, 3, 24}, options, 0).report();
  EXPECT_EQ(report.describe_skipped(),
            "2 of 5 documents, 35 tokens (81.4 % of all): longer than a micro-batch of 10");
  EXPECT_NE(report.describe().find("left out " + report.describe_skipped()), std::string::npos);
}

// Seconds on an idle machine; the bound only tells linear from quadratic work, also under
// sanitizers.
TEST(Packer, FillsWellAndPacksMillionsInSeconds) {
  constexpr size_t kDocuments = 2'000'000;
  RandomStream random(1, "packer speed");
  std::vector<int64_t> lengths(kDocuments);
  for (int64_t& length : lengths) {
    length = std::min<int64_t>(65536, 1 + std::llround(std::exp(7.5 + 1.5 * random.normal())));
  }
  const auto start = std::chrono::steady_clock::now();
  const EpochPlan plan = plan_epoch(lengths, {.seed = 1, .micro_batch_tokens = 65536}, 0);
  const std::chrono::duration<double> plan_s = std::chrono::steady_clock::now() - start;
  std::cout << plan.report().describe() << ", " << plan_s.count() << " s\n";
  EXPECT_GT(plan.report().fill_percent(), 98);
  EXPECT_LT(plan_s.count(), 100);
}

TEST(MicroBatch, EqualsANaiveAssembly) {
  for (uint64_t seed = 0; seed < 200; ++seed) {
    SCOPED_TRACE(seed);
    const Case drawn = random_case(seed);
    RandomStream random(seed, "content");
    std::vector<DocumentContent> documents;
    for (const int64_t length : drawn.lengths) {
      DocumentContent content;
      const bool is_weighted = random.below(2) == 0;
      for (int64_t idx = 0; idx < length; ++idx) {
        content.tokens.push_back(static_cast<int32_t>(random.below(50)));
        if (is_weighted) content.weights.push_back(static_cast<float>(random.below(4)) / 2);
      }
      documents.push_back(content);
    }
    const MemorySource source(documents);
    Packer packer(drawn.lengths, drawn.options);
    const PackedMicroBatch packed = packer.next();
    const MicroBatch batch = materialize(source, packed, {.vocabulary_size = 50});

    int64_t position = 0;
    double weight_sum = 0;
    ASSERT_EQ(batch.document_begins.size(), packed.pieces.size() + 1);
    for (size_t idx = 0; idx < packed.pieces.size(); ++idx) {
      const DocumentPiece& piece = packed.pieces[idx];
      const DocumentContent& content = documents[static_cast<size_t>(piece.document)];
      EXPECT_EQ(batch.document_begins[idx], position);
      EXPECT_EQ(batch.names[idx], text("document ", piece.document));
      for (int64_t at = piece.range.begin; at < piece.range.end; ++at, ++position) {
        const auto here = static_cast<size_t>(position);
        const auto next = static_cast<size_t>(at) + 1;
        const bool is_last = at + 1 == piece.range.end;
        const float weight = is_last                   ? 0.0F
                             : content.weights.empty() ? 1.0F
                                                       : content.weights[next];
        EXPECT_EQ(batch.tokens[here], content.tokens[next - 1]);
        EXPECT_EQ(batch.targets[here], is_last ? -1 : content.tokens[next]);
        EXPECT_EQ(batch.weights[here], weight);
        weight_sum += weight;
      }
    }
    EXPECT_EQ(batch.document_begins.back(), position);
    EXPECT_EQ(batch.size(), position);
    EXPECT_EQ(batch.weight_sum, weight_sum);
  }
}

TEST(MicroBatch, TokenOutsideTheVocabularyIsNamed) {
  const MemorySource source({{{1, 2, 9, 3}, {}}}, {"chr1"});
  const PackedMicroBatch packed{0, {{0, {1, 4}}}};
  EXPECT_EQ(materialize(source, packed, {.vocabulary_size = 10}).size(), 3);
  try {
    materialize(source, packed, {.vocabulary_size = 9});
    FAIL();
  } catch (const UserError& error) {
    EXPECT_NE(std::string(error.what()).find("chr1, position 2: token id 9"), std::string::npos)
        << error.what();
  }
  EXPECT_THROW(check_vocabulary(source, 9), UserError);
  EXPECT_NO_THROW(check_vocabulary(source, 10));
}

}  // namespace
}  // namespace longspan
