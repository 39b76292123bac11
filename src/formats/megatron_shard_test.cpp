#include "formats/megatron_shard.h"

#include <gtest/gtest.h>

#include <chrono>

#include "base/error.h"
#include "base/random.h"
#include "formats/little_endian.h"
#include "formats/test_folder.h"

namespace longspan {
namespace {

using Documents = std::vector<std::vector<int32_t>>;

void write_shard(const std::filesystem::path& prefix, const Documents& documents,
                 int64_t vocabulary) {
  MegatronWriter writer(prefix, vocabulary);
  for (const auto& document : documents) {
    const size_t half = document.size() / 2;
    writer.append(std::span(document).first(half));
    writer.append(std::span(document).subspan(half));
    writer.end_document();
  }
  writer.publish();
}

template <typename T>
std::string bytes_of(std::initializer_list<T> values) {
  std::string bytes;
  for (const T value : values) append_little_endian(bytes, value);
  return bytes;
}

// Two documents {5, 65499} and {7} of three sequences, typed out by hand from the format's table.
struct HandMadeShard {
  std::string magic = std::string("MMIDIDX\0\0", 9);
  std::string version = bytes_of<uint64_t>({1});
  std::string type = bytes_of<uint8_t>({8});
  std::string counts = bytes_of<uint64_t>({3, 3});
  std::string lengths = bytes_of<int32_t>({1, 1, 1});
  std::string offsets = bytes_of<int64_t>({0, 2, 4});
  std::string documents = bytes_of<int64_t>({0, 2, 3});
  std::string modes;
  std::string bin = bytes_of<uint16_t>({5, 65499, 7});

  MegatronShard open(const TestFolder& folder) const {
    folder.write("x.idx", magic + version + type + counts + lengths + offsets + documents + modes);
    folder.write("x.bin", bin);
    return MegatronShard(folder / "x");
  }
};

TEST(Megatron, ReadsTheHandMadeShard) {
  const TestFolder folder;
  HandMadeShard hand_made;
  for (const bool with_modes : {false, true}) {
    hand_made.modes = with_modes ? std::string(3, '\0') : "";
    const MegatronShard shard = hand_made.open(folder);
    ASSERT_EQ(shard.documents(), 2);
    EXPECT_EQ(shard.tokens(0, {0, 2}), (std::vector<int32_t>{5, 65499}));
    EXPECT_EQ(shard.tokens(0, {1, 2}), (std::vector<int32_t>{65499}));
    EXPECT_EQ(shard.tokens(1, {0, 1}), (std::vector<int32_t>{7}));
    shard.index().check_all();
  }
}

TEST(Megatron, WritesExactBytes) {
  const TestFolder folder;
  write_shard(folder / "x", {{5, 65498}, {7}}, 65499);
  EXPECT_EQ(read_text(folder / "x.bin"), bytes_of<uint16_t>({5, 65498, 7}));
  EXPECT_EQ(read_text(folder / "x.idx"), std::string("MMIDIDX\0\0", 9) + bytes_of<uint64_t>({1}) +
                                             bytes_of<uint8_t>({8}) + bytes_of<uint64_t>({2, 3}) +
                                             bytes_of<int32_t>({2, 1}) + bytes_of<int64_t>({0, 4}) +
                                             bytes_of<int64_t>({0, 1, 2}));
  write_shard(folder / "y", {{5, 70000}}, 70001);
  EXPECT_EQ(read_text(folder / "y.bin"), bytes_of<int32_t>({5, 70000}));
}

TEST(Megatron, WidthFollowsTheVocabulary) {
  EXPECT_EQ(megatron_token_type(65499), TokenType::kU16);
  EXPECT_EQ(megatron_token_type(65500), TokenType::kI32);
}

TEST(Megatron, RoundTripOfRandomDocuments) {
  for (uint64_t seed = 0; seed < 50; ++seed) {
    SCOPED_TRACE(seed);
    RandomStream random(seed, "megatron");
    const int64_t vocabulary = random.below(2) == 0 ? 300 : 100'000;
    Documents documents(random.below(20));
    for (auto& document : documents) {
      document.resize(1 + random.below(50));
      for (int32_t& id : document) id = static_cast<int32_t>(random.between(0, vocabulary - 1));
    }
    const TestFolder folder;
    write_shard(folder / "a.b", documents, vocabulary);
    const MegatronShard shard(folder / "a.b.idx");
    ASSERT_EQ(shard.documents(), static_cast<int64_t>(documents.size()));
    for (int64_t idx = 0; idx < shard.documents(); ++idx) {
      EXPECT_EQ(shard.tokens(idx, {0, shard.length(idx)}), documents[static_cast<size_t>(idx)]);
    }
  }
}

TEST(Megatron, ReadsEveryTokenTypeAndRefusesWhatIsNoTokenId) {
  const TestFolder folder;
  HandMadeShard shard;
  const auto read = [&](uint8_t type, const std::string& bin, int64_t width) {
    shard.type = bytes_of<uint8_t>({type});
    shard.offsets = bytes_of<int64_t>({0, width, 2 * width});
    shard.bin = bin;
    return shard.open(folder).tokens(0, {0, 2});
  };
  const std::vector<int32_t> expected{1, 2};
  EXPECT_EQ(read(1, bytes_of<uint8_t>({1, 2, 3}), 1), expected);
  EXPECT_EQ(read(2, bytes_of<int8_t>({1, 2, 3}), 1), expected);
  EXPECT_EQ(read(3, bytes_of<int16_t>({1, 2, 3}), 2), expected);
  EXPECT_EQ(read(4, bytes_of<int32_t>({1, 2, 3}), 4), expected);
  EXPECT_EQ(read(5, bytes_of<int64_t>({1, 2, 3}), 8), expected);
  EXPECT_EQ(read(8, bytes_of<uint16_t>({1, 2, 3}), 2), expected);
  EXPECT_THROW(read(2, bytes_of<int8_t>({1, -2, 3}), 1), UserError);
  EXPECT_THROW(read(5, bytes_of<int64_t>({1, int64_t{1} << 31, 3}), 8), UserError);
  EXPECT_THROW(read(6, bytes_of<double>({1, 2, 3}), 8), UserError);
  EXPECT_THROW(read(9, bytes_of<int64_t>({1, 2, 3}), 8), UserError);
}

TEST(Megatron, RefusesEachBrokenRule) {
  const TestFolder folder;
  const auto refused = [&](auto break_rule) {
    HandMadeShard shard;
    break_rule(shard);
    try {
      const MegatronShard opened = shard.open(folder);
      opened.index().check_all();
    } catch (const UserError& error) {
      return std::string(error.what()).find((folder / "x").string()) != std::string::npos;
    }
    return false;
  };
  EXPECT_FALSE(refused([](HandMadeShard&) {}));
  EXPECT_TRUE(refused([](HandMadeShard& s) { s.magic[3] = 'x'; }));
  EXPECT_TRUE(refused([](HandMadeShard& s) { s.version = bytes_of<uint64_t>({2}); }));
  EXPECT_TRUE(refused([](HandMadeShard& s) { s.counts = bytes_of<uint64_t>({4, 3}); }));
  EXPECT_TRUE(refused([](HandMadeShard& s) { s.counts = bytes_of<uint64_t>({3, 0}); }));
  EXPECT_TRUE(refused([](HandMadeShard& s) { s.counts = bytes_of<uint64_t>({~0ull, ~0ull}); }));
  EXPECT_TRUE(refused([](HandMadeShard& s) { s.lengths = bytes_of<int32_t>({2, 0, 1}); }));
  EXPECT_TRUE(refused([](HandMadeShard& s) { s.lengths = bytes_of<int32_t>({-1, 2, 1}); }));
  EXPECT_TRUE(refused([](HandMadeShard& s) { s.offsets = bytes_of<int64_t>({0, 4, 2}); }));
  EXPECT_TRUE(refused([](HandMadeShard& s) { s.offsets = bytes_of<int64_t>({-2, 2, 4}); }));
  EXPECT_TRUE(refused([](HandMadeShard& s) { s.documents = bytes_of<int64_t>({0, 4, 3}); }));
  EXPECT_TRUE(refused([](HandMadeShard& s) { s.documents = bytes_of<int64_t>({1, 2, 3}); }));
  EXPECT_TRUE(refused([](HandMadeShard& s) { s.documents = bytes_of<int64_t>({0, 2, 2}); }));
  EXPECT_TRUE(refused([](HandMadeShard& s) { s.bin += '\0'; }));
  EXPECT_TRUE(refused([](HandMadeShard& s) { s.bin.pop_back(); }));
  EXPECT_TRUE(refused([](HandMadeShard& s) { s.modes = "\1\1\1"; }));
  EXPECT_TRUE(refused([](HandMadeShard& s) { s.modes = "\1"; }));
}

// Whatever the bytes: a UserError or tokens inside .bin, never a crash (run under ASan in CI).
TEST(Megatron, RandomDamageNeverCrashes) {
  const TestFolder folder;
  write_shard(folder / "x", {{1, 2, 3}, {4}, {5, 6}}, 100);
  const std::string index = read_text(folder / "x.idx");
  const int64_t bin_bytes = 12;
  for (uint64_t seed = 0; seed < 3000; ++seed) {
    RandomStream random(seed, "megatron damage");
    std::string damaged = index;
    for (uint64_t count = 1 + random.below(4); count > 0; --count) {
      damaged[random.below(damaged.size())] = static_cast<char>(random.below(256));
    }
    if (random.below(4) == 0) damaged.resize(random.below(damaged.size() + 1));
    try {
      const MegatronIndex opened(std::as_bytes(std::span(damaged)), bin_bytes, "x");
      for (int64_t idx = 0; idx < opened.documents(); ++idx) {
        const Range bytes = opened.document_bytes(idx);
        EXPECT_TRUE(Range(0, bin_bytes).contains(bytes)) << seed;
      }
    } catch (const UserError&) {
    }
  }
}

TEST(Megatron, EmptyShardAndAbandonedWriter) {
  const TestFolder folder;
  write_shard(folder / "empty", {}, 10);
  EXPECT_EQ(MegatronShard(folder / "empty").documents(), 0);
  {
    MegatronWriter writer(folder / "half", 10);
    writer.append(std::vector<int32_t>{1, 2});
    EXPECT_THROW(writer.append(std::vector<int32_t>{10}), InternalError);
    EXPECT_THROW(writer.seal(), InternalError);  // the document is open
  }
  EXPECT_FALSE(std::filesystem::exists(folder / "half.bin"));
  EXPECT_THROW(MegatronShard(folder / "half"), UserError);
}

// Opening looks at the ends only, so it must cost next to nothing beside one walk over the
// documents.
TEST(Megatron, OpeningManyDocumentsIsImmediate) {
  constexpr int64_t kDocuments = 1'000'000;
  const TestFolder folder;
  MegatronWriter writer(folder / "x", 10);
  for (int64_t idx = 0; idx < kDocuments; ++idx) {
    writer.append(std::vector<int32_t>{1});
    writer.end_document();
  }
  writer.publish();
  using Clock = std::chrono::steady_clock;
  const auto start = Clock::now();
  const MegatronShard shard(folder / "x");
  const auto opened = Clock::now();
  shard.index().check_all();
  const auto walked = Clock::now();
  EXPECT_EQ(shard.documents(), kDocuments);
  EXPECT_LT(opened - start, walked - opened);
}

}  // namespace
}  // namespace longspan
