// Rows fetched from anywhere are the rows of the line; gradients reach the sums of their owners.
#include "mix/line_exchange.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include "base/error.h"
#include "base/random.h"
#include "comm/run_ranks.h"

namespace longspan {
namespace {

constexpr int64_t kTokens = 90;

std::vector<int64_t> random_borders(RandomStream& random, size_t pieces) {
  std::vector<int64_t> borders = {0, kTokens};
  while (borders.size() < pieces + 1) borders.push_back(random.between(0, kTokens));
  std::sort(borders.begin(), borders.end());
  return borders;
}

std::vector<Range> random_lines(RandomStream& random, int64_t end) {
  std::vector<Range> lines;
  for (int64_t count = random.between(0, 5); count > 0 && end > 0; --count) {
    const int64_t begin = random.between(0, end - 1);
    lines.push_back({begin, random.between(begin + 1, std::min(end, begin + 20))});
  }
  return normalize(lines);
}

// Row i of the line holds i, and of the second field 2 i in three numbers.
std::vector<at::Tensor> rows_of(const Range& line) {
  const at::Tensor positions = at::arange(line.begin, line.end, at::kDouble);
  return {positions.to(at::kFloat), positions.unsqueeze(1).expand({line.size(), 3}) * 2};
}

const std::vector<LineField> kFields = {{{}, at::kFloat}, {{3}, at::kDouble}};

// A number that depends on who gives it: sums in another order would differ in their last bits.
double given(int rank, int64_t line) {
  return 1.0 / static_cast<double>(3 + 7 * rank + line);
}

void check_rank(const TokenLayout& layout, int chunk, const std::vector<std::vector<Range>>& wanted,
                Communicator& comm) {
  const int rank = comm.rank();
  const std::vector<Range> own_lines = normalize(layout.pieces_before(chunk + 1, rank));
  RowStore own;
  for (const Range& line : own_lines) own.add(line, rows_of(line));
  const LineExchange exchange(layout, chunk, wanted, rank);
  const RowStore all = exchange.fetch(own, kFields, comm, 40, "fetch");
  RowStore gradients;
  for (const Range& line : wanted[static_cast<size_t>(rank)]) {
    const std::vector<at::Tensor> rows = all.rows(line);
    EXPECT_TRUE(at::equal(rows[0], rows_of(line)[0])) << line;
    EXPECT_TRUE(at::equal(rows[1], rows_of(line)[1])) << line;
    at::Tensor gradient = at::zeros({line.size(), 3}, at::kDouble);
    for (int64_t at = line.begin; at < line.end; ++at)
      gradient[at - line.begin].fill_(given(rank, at));
    gradients.add(line, {gradient});
  }
  const std::vector<LineField> gradient_fields = {{{3}, at::kDouble}};
  RowAccumulator sums(own_lines, {{3}}, at::TensorOptions(at::kDouble));
  exchange.give_back(gradients, gradient_fields, sums, comm, 40, "give back");
  for (const Range& line : own_lines) {
    for (int64_t at = line.begin; at < line.end; ++at) {
      double expected = 0;
      for (int wisher = 0; wisher < comm.size(); ++wisher) {
        if (!intersect(wanted[static_cast<size_t>(wisher)], {{at, at + 1}}).empty())
          expected += given(wisher, at);
      }
      EXPECT_EQ(sums.rows({at, at + 1})[0][0][2].item<double>(), expected) << "line " << at;
    }
  }
}

TEST(LineExchange, RandomWishesOverRandomPieces) {
  for (uint64_t seed = 0; seed < 60; ++seed) {
    SCOPED_TRACE(seed);
    RandomStream random(seed, "line exchange");
    const int ranks = static_cast<int>(random.between(1, 5));
    const int chunks = static_cast<int>(random.between(1, 4));
    const TokenLayout layout = TokenLayout::from_borders(
        {40, 1, 2, 47}, chunks, ranks, random_borders(random, static_cast<size_t>(ranks * chunks)));
    const int chunk = static_cast<int>(random.between(0, chunks - 1));
    std::vector<std::vector<Range>> wanted;
    for (int rank = 0; rank < ranks; ++rank)
      wanted.push_back(random_lines(random, layout.chunk(chunk).end));
    run_ranks(ranks, {}, [&](Communicator& comm) { check_rank(layout, chunk, wanted, comm); });
  }
}

TEST(LineExchange, LinesOfLaterChunksAndRowsOfAnotherShapeAreErrors) {
  const TokenLayout layout = TokenLayout::from_borders({10}, 2, 1, {0, 6, 10});
  EXPECT_THROW(LineExchange(layout, 0, {{{4, 7}}}, 0), InternalError);
  const TokenLayout two = TokenLayout::from_borders({10}, 1, 2, {0, 6, 10});
  EXPECT_THROW(run_ranks(2, {},
                         [&](Communicator& comm) {
                           RowStore own;
                           const Range piece = two.piece(0, comm.rank());
                           own.add(piece, {rows_of(piece)[1]});
                           const LineExchange exchange(two, 0, {{}, {{5, 6}}}, comm.rank());
                           exchange.fetch(own, {{{2}, at::kDouble}}, comm, 0, "fetch");
                         }),
               InternalError);
}

}  // namespace
}  // namespace longspan
