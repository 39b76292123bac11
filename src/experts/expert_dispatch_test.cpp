// Which rows go where: every pair travels once, a token once at most to a rank, receivers expect
// what senders send, chunks keep their bound and are no more than needed.
#include "experts/expert_dispatch.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <set>

#include "base/error.h"
#include "experts/expert_case.h"

namespace longspan {
namespace {

int64_t pairs_of(const std::vector<int64_t>& rows) {
  int64_t pairs = 0;
  for (size_t m = 0; m < rows.size(); ++m) pairs += static_cast<int64_t>(m + 1) * rows[m];
  return pairs;
}

// By number of pairs, as the receiver counts them; checks that the rows fall.
std::vector<int64_t> counted(const OutgoingRows& rows, const ExpertGroupShape& shape) {
  std::vector<int64_t> counts(static_cast<size_t>(shape.pairs_per_row_max()));
  size_t pair = 0;
  int64_t before = shape.pairs_per_row_max();
  for (const int64_t token : rows.tokens) {
    int64_t width = 0;
    while (pair < rows.places.size() && rows.places[pair] / shape.top_k == token) ++width, ++pair;
    EXPECT_LE(width, before);
    before = width;
    ++counts.at(static_cast<size_t>(width - 1));
  }
  EXPECT_EQ(pair, rows.places.size());
  return counts;
}

void expect_every_pair_once(const ExpertDispatch& dispatch) {
  const ExpertGroupShape& shape = dispatch.shape();
  const int32_t* ids = dispatch.ids_TK().const_data_ptr<int32_t>();
  std::set<int64_t> places;
  for (int64_t to = 0; to < shape.ranks; ++to) {
    std::set<int64_t> tokens;
    for (int64_t chunk = 0; chunk < dispatch.chunks(); ++chunk) {
      const OutgoingRows& rows = dispatch.outgoing(chunk, to);
      for (const int64_t token : rows.tokens) EXPECT_TRUE(tokens.insert(token).second) << token;
      for (const int64_t place : rows.places) {
        EXPECT_TRUE(places.insert(place).second) << place;
        EXPECT_EQ(ids[place] / shape.experts_per_rank(), to);
      }
    }
  }
  EXPECT_EQ(std::ssize(places), dispatch.tokens() * shape.top_k);
}

TEST(ExpertDispatch, SendersAndReceiversAgree) {
  for (uint64_t seed = 0; seed < 60; ++seed) {
    RandomStream random(seed, "dispatch");
    ExpertCase c{.seed = seed, .ranks = static_cast<int>(1 << random.below(4))};
    c.top_k = random.between(1, 8);
    c.tokens = random.between(0, 120);
    c.skew = static_cast<Skew>(random.below(3));
    ExpertGroupShape shape{c.experts, c.top_k, c.ranks, 0};
    shape.max_pairs_per_chunk = c.ranks * shape.pairs_per_row_max() + random.between(0, 50);
    SCOPED_TRACE(testing::Message() << c);
    const at::Tensor ids = draw_data(c).ids_TK;
    const std::vector<int64_t> cuts = token_cuts(c);
    std::vector<std::unique_ptr<ExpertDispatch>> all(static_cast<size_t>(c.ranks));
    run_ranks(c.ranks, {.stall_timeout_s = 60}, [&](Communicator& comm) {
      const auto rank = static_cast<size_t>(comm.rank());
      const at::Tensor own = ids.slice(0, cuts[rank], cuts[rank + 1]).contiguous();
      all[rank] = std::make_unique<ExpertDispatch>(shape, own, &comm, "counts");
    });
    int64_t largest = 0;
    for (int64_t to = 0; to < c.ranks; ++to) {
      const ExpertDispatch& receiver = *all[static_cast<size_t>(to)];
      expect_every_pair_once(receiver);
      EXPECT_EQ(receiver.chunks(), all[0]->chunks());
      for (int64_t chunk = 0; chunk < receiver.chunks(); ++chunk) {
        int64_t received = 0;
        int64_t sent = 0;
        for (int64_t from = 0; from < c.ranks; ++from) {
          const std::vector<int64_t> expected = receiver.incoming(chunk, from);
          EXPECT_EQ(counted(all[static_cast<size_t>(from)]->outgoing(chunk, to), shape), expected);
          received += pairs_of(expected);
          sent += std::ssize(receiver.outgoing(chunk, from).places);
        }
        largest = std::max({largest, received, sent});
      }
    }
    EXPECT_LE(largest, shape.max_pairs_per_chunk);
    EXPECT_EQ(largest, all[0]->pairs_per_chunk());
    // Chunks of equal shares: at most what whole rows and ragged counts add to the fewest possible.
    const int64_t slack = c.ranks * shape.pairs_per_row_max();
    if (all[0]->chunks() > 1) {
      EXPECT_GT(largest + slack, shape.max_pairs_per_chunk / 2);
    }
    if (testing::Test::HasFailure()) return;
  }
}

std::string refusal(const ExpertGroupShape& shape) {
  try {
    check_expert_group(shape);
  } catch (const UserError& error) {
    return error.what();
  }
  return "no error";
}

TEST(ExpertDispatch, WhatCannotBeIsRefused) {
  EXPECT_NE(refusal({10, 2, 4, 100}).find("layout.expert_group = 4 does not divide the 10"),
            std::string::npos);
  EXPECT_NE(refusal({8, 2, 4, 7}).find("layout.expert_chunk_pairs = 7"), std::string::npos);
  EXPECT_EQ(refusal({8, 2, 4, 8}), "no error");
  auto dispatch = [](const at::Tensor& ids) {
    ExpertDispatch({4, 2, 1, 100}, ids.view({1, 2}), nullptr, "counts");
  };
  EXPECT_THROW(dispatch(at::tensor({1, 4}, at::kInt)), InternalError);
  EXPECT_THROW(dispatch(at::tensor({-1, 0}, at::kInt)), InternalError);
  EXPECT_THROW(dispatch(at::tensor({2, 2}, at::kInt)), InternalError);
  EXPECT_THROW(dispatch(at::tensor({1, 2}, at::kLong)), InternalError);
}

}  // namespace
}  // namespace longspan
