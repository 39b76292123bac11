#include "data/pack_documents.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "base/error.h"
#include "base/random.h"
#include "data/memory_source.h"
#include "data/shard_source.h"
#include "data/sidecars.h"
#include "formats/test_folder.h"

namespace longspan {
namespace {

MemorySource random_source(RandomStream& random, bool may_weigh) {
  std::vector<DocumentContent> documents(1 + random.below(12));
  std::vector<std::string> names;
  for (DocumentContent& content : documents) {
    names.push_back(text("document \xc3\xb6 ", names.size()));
    const bool is_weighted = may_weigh && random.below(2) == 0;
    float weight = 1;
    for (uint64_t count = random.below(30); count > 0; --count) {
      content.tokens.push_back(static_cast<int32_t>(random.below(1000)));
      if (random.below(3) == 0) weight = static_cast<float>(random.below(4)) / 2;
      if (is_weighted) content.weights.push_back(weight);
    }
  }
  documents[0] = {{1, 2, 3}, {}};  // never all empty
  return MemorySource(std::move(documents), std::move(names));
}

void expect_equal_read(const DocumentContent& a, const DocumentContent& b) {
  EXPECT_EQ(a.tokens, b.tokens);
  for (size_t idx = 0; idx < a.tokens.size(); ++idx) {
    EXPECT_EQ(a.weights.empty() ? 1 : a.weights[idx], b.weights.empty() ? 1 : b.weights[idx]);
  }
}

TEST(PackDocuments, RoundTripOfTokensWeightsAndNames) {
  for (uint64_t seed = 0; seed < 80; ++seed) {
    SCOPED_TRACE(seed);
    RandomStream random(seed, "pack");
    const MemorySource source = random_source(random, random.below(2) == 0);
    const TestFolder folder;
    int64_t reported = 0;
    const PackedShard packed =
        pack_documents(source, folder / "sub/x",
                       {.vocabulary_size = random.below(2) == 0 ? 1000 : 100'000,
                        .progress = [&](int64_t done, int64_t) { reported = done; }});
    const ShardSource shard(folder / "sub/x.bin");
    EXPECT_EQ(shard.count(), packed.documents);
    EXPECT_EQ(reported, packed.tokens);
    int64_t in_shard = 0;
    for (int64_t document = 0; document < source.count(); ++document) {
      const int64_t length = source.length(document);
      if (length == 0) continue;
      EXPECT_EQ(shard.name(in_shard), source.name(document));
      ASSERT_EQ(shard.length(in_shard), length);
      const int64_t begin = random.between(0, length);
      const Range part{begin, random.between(begin, length)};
      expect_equal_read(shard.read(in_shard, {0, length}, 0),
                        source.read(document, {0, length}, 0));
      expect_equal_read(shard.read(in_shard, part, 0), source.read(document, part, 0));
      ++in_shard;
    }
    EXPECT_EQ(in_shard, packed.documents);
    EXPECT_EQ(packed.documents + packed.documents_empty, source.count());
    EXPECT_EQ(std::filesystem::exists(folder / "sub/x.weights"), packed.has_weights);
  }
}

TEST(PackDocuments, OverwritingIsAskedForAndLeavesNoOldSidecar) {
  const TestFolder folder;
  const MemorySource weighted({{{1, 2}, {0, 1}}});
  const MemorySource plain({{{1, 2}, {}}});
  pack_documents(weighted, folder / "x", {.vocabulary_size = 10});
  EXPECT_TRUE(std::filesystem::exists(folder / "x.weights"));
  EXPECT_THROW(pack_documents(plain, folder / "x", {.vocabulary_size = 10}), UserError);
  pack_documents(plain, folder / "x", {.vocabulary_size = 10, .overwrite = true});
  EXPECT_FALSE(std::filesystem::exists(folder / "x.weights"));
  EXPECT_EQ(std::distance(std::filesystem::directory_iterator(folder.path()), {}), 3);
}

TEST(PackDocuments, FailureLeavesNothing) {
  const TestFolder folder;
  const MemorySource source({{{1, 2}, {}}, {{1, 99}, {}}}, {"good", "bad"});
  try {
    pack_documents(source, folder / "x", {.vocabulary_size = 99});
    FAIL();
  } catch (const UserError& error) {
    EXPECT_NE(std::string(error.what()).find("bad, position 1: token id 99"), std::string::npos);
  }
  EXPECT_TRUE(std::filesystem::is_empty(folder.path()));
  EXPECT_THROW(pack_documents(MemorySource(std::vector<DocumentContent>(1)), folder / "x",
                              {.vocabulary_size = 9}),
               UserError);
}

TEST(Sidecars, OfAnotherShardAreRefused) {
  const TestFolder folder;
  pack_documents(MemorySource({{{1, 2}, {0, 1}}}), folder / "x", {.vocabulary_size = 10});
  pack_documents(MemorySource({{{1, 2, 3}, {0, 1, 1}}}), folder / "y", {.vocabulary_size = 10});
  for (const std::string suffix : {".weights", ".names"}) {
    const TestFolder mixed;
    for (const std::string file : {".idx", ".bin"}) {
      mixed.write("x" + file, read_text(folder / ("x" + file)));
    }
    mixed.write("x" + suffix, read_text(folder / ("x" + suffix)));
    EXPECT_NO_THROW(ShardSource(mixed / "x"));
    mixed.write("x" + suffix, read_text(folder / ("y" + suffix)));
    EXPECT_THROW(ShardSource(mixed / "x"), UserError);
  }
}

TEST(Sidecars, RandomDamageNeverCrashes) {
  const TestFolder folder;
  pack_documents(MemorySource({{{1, 2, 3, 4}, {0, 1, 0.5F, 0.5F}}, {{5, 6}, {1, 0}}}), folder / "x",
                 {.vocabulary_size = 10});
  const std::string weights = read_text(folder / "x.weights");
  const std::string names = read_text(folder / "x.names");
  for (uint64_t seed = 0; seed < 1000; ++seed) {
    RandomStream random(seed, "sidecar damage");
    const auto damage = [&](std::string bytes) {
      for (uint64_t count = 1 + random.below(3); count > 0; --count) {
        bytes[random.below(bytes.size())] = static_cast<char>(random.below(256));
      }
      if (random.below(5) == 0) bytes.resize(random.below(bytes.size()));
      return bytes;
    };
    try {
      const WeightSidecar sidecar(folder.write("w", damage(weights)), 2, 12);
      for (const float weight : sidecar.read(0, {0, 4}, 4)) EXPECT_GE(weight, 0);
      sidecar.read(1, {0, 2}, 2);
    } catch (const UserError&) {
    }
    try {
      const NameSidecar sidecar(folder.write("n", damage(names)), 2, 12);
      EXPECT_LE(sidecar.name(0).size() + sidecar.name(1).size(), 2 * names.size());
    } catch (const UserError&) {
    }
  }
}

}  // namespace
}  // namespace longspan
