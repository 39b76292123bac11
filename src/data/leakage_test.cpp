#include "data/leakage.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <set>
#include <string>

#include "base/random.h"
#include "data/memory_source.h"

namespace longspan {
namespace {

constexpr int32_t kEnd = 5;  // of a document, in the nucleotide tokenizer

using Bases = std::vector<int32_t>;

Bases random_bases(RandomStream& random, int64_t count, double n_share) {
  Bases bases;
  while (std::ssize(bases) < count) {
    bases.push_back(random.uniform() < n_share ? 4 : static_cast<int32_t>(random.below(4)));
  }
  return bases;
}

Bases reverse_complement(Bases bases) {
  std::reverse(bases.begin(), bases.end());
  for (int32_t& base : bases) base = base < 4 ? 3 - base : base;
  return bases;
}

MemorySource source_of(const std::vector<Bases>& documents) {
  std::vector<DocumentContent> contents;
  for (const Bases& bases : documents) {
    contents.push_back({bases, {}});
    contents.back().tokens.push_back(kEnd);
  }
  return MemorySource(contents);
}

// All windows of 24 bases as plain lists, N left out.
std::vector<Bases> windows_of(const Bases& bases) {
  std::vector<Bases> windows;
  for (size_t begin = 0; begin + kLeakageBases <= bases.size(); ++begin) {
    const auto first = bases.begin() + static_cast<std::ptrdiff_t>(begin);
    Bases window(first, first + kLeakageBases);
    if (std::count(window.begin(), window.end(), 4) == 0) windows.push_back(std::move(window));
  }
  return windows;
}

TEST(Leakage, EqualsAPlainCount) {
  int64_t found_in_all = 0;
  for (uint64_t seed = 0; seed < 30; ++seed) {
    SCOPED_TRACE(seed);
    RandomStream random(seed, "leakage");
    std::vector<Bases> train;
    for (int count = 0; count < 4; ++count) {
      train.push_back(random_bases(random, random.between(0, 300), 0.01));
    }
    // Evaluation: pieces of training documents on either strand, between bases of their own.
    std::vector<Bases> evaluation(5);
    for (Bases& document : evaluation) {
      for (uint64_t part = random.below(6); part > 0; --part) {
        Bases piece = random_bases(random, random.between(0, 60), 0.01);
        if (random.below(2) == 0) {
          const Bases& from = train[random.below(train.size())];
          const int64_t begin = random.between(0, std::ssize(from));
          const int64_t end = random.between(begin, std::ssize(from));
          piece.assign(from.begin() + begin, from.begin() + end);
          if (random.below(2) == 0) piece = reverse_complement(piece);
        }
        document.insert(document.end(), piece.begin(), piece.end());
      }
    }

    std::set<Bases> known;
    int64_t training_windows = 0;
    for (const Bases& bases : train) {
      for (const Bases& window : windows_of(bases)) {
        known.insert(window);
        known.insert(reverse_complement(window));
        ++training_windows;
      }
    }
    const MemorySource train_source = source_of(train);
    const MemorySource evaluation_source = source_of(evaluation);
    for (const int64_t kmers_at_once : {int64_t{1} << 20, int64_t{100}, int64_t{7}}) {
      const LeakageReport report =
          measure_leakage(train_source, evaluation_source, {.kmers_at_once = kmers_at_once});
      EXPECT_EQ(report.training_windows, training_windows);
      LeakageCount total;
      for (size_t idx = 0; idx < evaluation.size(); ++idx) {
        LeakageCount expected;
        for (const Bases& window : windows_of(evaluation[idx])) {
          ++expected.windows;
          expected.found += known.contains(window);
        }
        EXPECT_EQ(report.documents[idx].windows, expected.windows);
        EXPECT_EQ(report.documents[idx].found, expected.found);
        total.windows += expected.windows;
        total.found += expected.found;
      }
      EXPECT_EQ(report.total.windows, total.windows);
      EXPECT_EQ(report.total.found, total.found);
      found_in_all += total.found;
    }
  }
  EXPECT_GT(found_in_all, 1000);
}

TEST(Leakage, SaysNothingOfNothing) {
  RandomStream random(1, "leakage");
  const MemorySource train = source_of({random_bases(random, 100, 0)});
  const MemorySource tiny = source_of({random_bases(random, kLeakageBases - 1, 0), {}});
  const LeakageReport report = measure_leakage(train, tiny, {});
  EXPECT_EQ(report.total.windows, 0);
  EXPECT_EQ(leakage_json(report)["found_percent"], 0);
  EXPECT_NE(format_leakage(report).find("0.00 % of 0"), std::string::npos);
}

TEST(Leakage, ReportNamesTheWorstDocuments) {
  RandomStream random(2, "leakage");
  const Bases shared = random_bases(random, 60, 0);
  const MemorySource train = source_of({shared});
  const MemorySource evaluation = source_of({random_bases(random, 60, 0), shared});
  int64_t done = 0;
  int64_t total = 1;
  const LeakageReport report = measure_leakage(
      train, evaluation, {.kmers_at_once = 20, .progress = [&](int64_t now, int64_t all) {
                            done = now, total = all;
                          }});
  EXPECT_EQ(done, total);
  EXPECT_EQ(report.total.found, 60 - kLeakageBases + 1);
  const std::string page = format_leakage(report);
  EXPECT_NE(page.find("50.00 %"), std::string::npos) << page;
  EXPECT_NE(page.find("100.00 % of 37  " + evaluation.name(1)), std::string::npos) << page;
  EXPECT_EQ(page.find(evaluation.name(0)), std::string::npos) << page;
}

}  // namespace
}  // namespace longspan
