#include "planner/document_order.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "base/random.h"
#include "layout/token_layout.h"
#include "planner/attention_plan.h"

namespace longspan {
namespace {

// Most over mean of the chunks' pairs.
double chunk_imbalance(const std::vector<int64_t>& lengths, const std::vector<size_t>& order,
                       int chunks) {
  std::vector<int64_t> line;
  for (const size_t document : order) line.push_back(lengths[document]);
  const TokenLayout layout = TokenLayout::make(line, {.chunks = chunks});
  double most = 0;
  double total = 0;
  for (int chunk = 0; chunk < chunks; ++chunk) {
    double pairs = 0;
    for (const DocumentPart& part : layout.document_parts(layout.chunk(chunk))) {
      pairs += static_cast<double>(visible_pairs(part.positions, {0, part.positions.end}));
    }
    most = std::max(most, pairs);
    total += pairs;
  }
  return most * chunks / total;
}

TEST(DocumentOrder, IsAPermutationAndEvensOutChunks) {
  double before = 0;
  double after = 0;
  constexpr int kCases = 300;
  for (uint64_t seed = 0; seed < kCases; ++seed) {
    RandomStream random(seed, "document order");
    std::vector<int64_t> lengths(static_cast<size_t>(random.between(20, 100)));
    for (int64_t& length : lengths) {
      length = static_cast<int64_t>(std::exp2(12 * random.uniform()));
    }
    const auto chunks = static_cast<int>(random.between(2, 5));
    std::vector<size_t> given(lengths.size());
    for (size_t idx = 0; idx < given.size(); ++idx) given[idx] = idx;
    const std::vector<size_t> order = even_chunk_order(lengths, chunks);
    std::vector<size_t> sorted = order;
    std::sort(sorted.begin(), sorted.end());
    ASSERT_EQ(sorted, given) << "seed " << seed;
    before += chunk_imbalance(lengths, given, chunks) / kCases;
    after += chunk_imbalance(lengths, order, chunks) / kCases;
  }
  EXPECT_GT(before, 1.3);
  EXPECT_LT(after - 1, 0.5 * (before - 1)) << "before " << before;
}

TEST(DocumentOrder, TwoLongDocumentsGoToTwoChunks) {
  const std::vector<int64_t> lengths = {9000, 9000, 100, 100, 100, 100};
  const std::vector<size_t> order = even_chunk_order(lengths, 2);
  EXPECT_LT(chunk_imbalance(lengths, order, 2), 1.02);
  EXPECT_EQ(even_chunk_order(lengths, 1), (std::vector<size_t>{0, 1, 2, 3, 4, 5}));
}

}  // namespace
}  // namespace longspan
