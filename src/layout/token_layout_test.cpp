#include "layout/token_layout.h"

#include <gtest/gtest.h>

#include "base/random.h"

namespace longspan {
namespace {

std::vector<int64_t> random_lengths(RandomStream& random) {
  std::vector<int64_t> lengths(1 + random.below(12));
  for (int64_t& length : lengths) {
    length = random.below(3) == 0 ? random.between(1, 5) : random.between(1, 1500);
  }
  return lengths;
}

// Pieces tile the line in (chunk, rank) order, shares hold within a block, and home() inverts
// piece().
TEST(TokenLayout, PiecesTileTheLineInEqualShares) {
  for (uint64_t seed = 0; seed < 400; ++seed) {
    RandomStream random(seed, "token layout");
    const auto lengths = random_lengths(random);
    LayoutOptions options{.chunks = static_cast<int>(random.between(1, 5)), .shares = {}};
    options.shares.assign(1 + random.below(8), 1.0);
    if (random.below(2) == 0 && options.shares.size() > 1) {
      options.shares[random.below(options.shares.size())] = 0.0;
    }
    const auto layout = TokenLayout::make(lengths, options);
    const auto ranks = static_cast<int>(options.shares.size());
    double active = 0;
    for (const double share : options.shares) active += share;
    int64_t at = 0;
    for (int chunk = 0; chunk < options.chunks; ++chunk) {
      for (int rank = 0; rank < ranks; ++rank) {
        const Range piece = layout.piece(chunk, rank);
        EXPECT_EQ(piece.begin, at) << "seed " << seed;
        at = piece.end;
        if (options.shares[static_cast<size_t>(rank)] == 0) {
          EXPECT_TRUE(piece.empty()) << "seed " << seed;
        } else {
          const double ideal = static_cast<double>(layout.num_tokens()) / (active * options.chunks);
          EXPECT_LE(std::abs(static_cast<double>(piece.size()) - ideal), kBlockTokens + 1.0)
              << "seed " << seed;
        }
        for (int64_t line = piece.begin; line < piece.end; ++line) {
          ASSERT_EQ(layout.home(line), (Home{chunk, rank})) << "seed " << seed;
        }
      }
    }
    EXPECT_EQ(at, layout.num_tokens()) << "seed " << seed;
  }
}

TEST(TokenLayout, BordersFallOnBlocksOfTheDocumentTheyCut) {
  for (uint64_t seed = 0; seed < 200; ++seed) {
    RandomStream random(seed, "snapped borders");
    const auto layout = TokenLayout::make(random_lengths(random), {.chunks = 3, .shares = {1, 1}});
    for (int chunk = 0; chunk < 3; ++chunk) {
      for (int rank = 0; rank < 2; ++rank) {
        const int64_t border = layout.piece(chunk, rank).end;
        if (border == layout.num_tokens()) continue;
        const Range document = layout.document(layout.document_at(border));
        EXPECT_EQ((border - document.begin) % kBlockTokens, 0) << "seed " << seed;
      }
    }
  }
}

TEST(TokenLayout, SegmentsAndHomesCoverEveryTokenOnce) {
  for (uint64_t seed = 0; seed < 200; ++seed) {
    RandomStream random(seed, "segments");
    const auto lengths = random_lengths(random);
    const auto layout = TokenLayout::make(lengths, {.chunks = 2, .shares = {1, 2, 1}});
    Range line{random.between(0, layout.num_tokens()), 0};
    line.end = random.between(line.begin, layout.num_tokens());
    int64_t at = line.begin;
    for (const DocumentPart& part : layout.document_parts(line)) {
      EXPECT_EQ(part.line.begin, at) << "seed " << seed;
      EXPECT_EQ(layout.to_line(part.document, part.positions), part.line) << "seed " << seed;
      at = part.line.end;
    }
    EXPECT_EQ(at, line.end) << "seed " << seed;
    at = line.begin;
    for (const auto& [home, part] : layout.split_by_home(line)) {
      EXPECT_EQ(part.begin, at) << "seed " << seed;
      EXPECT_TRUE(layout.piece(home.chunk, home.rank).contains(part)) << "seed " << seed;
      at = part.end;
    }
    EXPECT_EQ(at, line.end) << "seed " << seed;
  }
}

// carried_rows against the definition, token by token.
TEST(TokenLayout, CarriedRowsAreThoseOfDocumentsThatContinue) {
  for (uint64_t seed = 0; seed < 100; ++seed) {
    RandomStream random(seed, "carried");
    const auto layout = TokenLayout::make(random_lengths(random), {.chunks = 4, .shares = {1, 1}});
    for (int chunk = 0; chunk < 4; ++chunk) {
      const Range piece = layout.piece(chunk, 1);
      const auto rows = layout.carried_rows(chunk, 1, chunk + 1);
      for (int64_t line = piece.begin; line < piece.end; ++line) {
        const int64_t end = layout.document(layout.document_at(line)).end;
        const bool continues = end > layout.chunk(chunk).end && chunk + 1 < 4;
        EXPECT_EQ(covers(rows, {line, line + 1}), continues) << "seed " << seed << " line " << line;
      }
    }
  }
}

}  // namespace
}  // namespace longspan
