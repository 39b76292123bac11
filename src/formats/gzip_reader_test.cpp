#include "formats/gzip_reader.h"

#include <gtest/gtest.h>
#include <zlib.h>

#include "base/error.h"
#include "base/random.h"

namespace longspan {
namespace {

std::string gzip(const std::string& content) {
  z_stream stream{};
  EXPECT_EQ(deflateInit2(&stream, 6, Z_DEFLATED, 15 + 16, 8, Z_DEFAULT_STRATEGY), Z_OK);
  std::string out(deflateBound(&stream, content.size()) + 32, '\0');
  std::string in = content;
  stream.next_in = reinterpret_cast<Bytef*>(in.data());
  stream.avail_in = static_cast<uInt>(in.size());
  stream.next_out = reinterpret_cast<Bytef*>(out.data());
  stream.avail_out = static_cast<uInt>(out.size());
  EXPECT_EQ(deflate(&stream, Z_FINISH), Z_STREAM_END);
  out.resize(stream.total_out);
  deflateEnd(&stream);
  return out;
}

std::string read_all(const std::string& content) {
  GzipReader reader(content, "test");
  std::string all;
  while (!reader.next().empty()) all += reader.piece();
  return all;
}

std::string random_text(RandomStream& random, uint64_t bytes) {
  std::string content;
  while (content.size() < bytes) content += "ACGTN\n"[random.below(6)];
  return content;
}

// The empty bgzip member, and the start of any bgzip member, as the specification prints them.
const std::string kBgzipEnd(
    "\x1f\x8b\x08\x04\x00\x00\x00\x00\x00\xff\x06\x00\x42\x43\x02\x00\x1b\x00\x03\x00\x00\x00\x00"
    "\x00\x00\x00\x00\x00",
    28);

// One bgzip member: a gzip member with the extra field BC that holds its size - 1.
std::string bgzip_member(const std::string& content) {
  std::string member = gzip(content);
  const std::string body = member.substr(10);
  const size_t size = 18 + body.size();
  std::string out("\x1f\x8b\x08\x04\0\0\0\0\0\xff\x06\0BC\x02\0", 16);
  out += static_cast<char>((size - 1) & 0xff);
  out += static_cast<char>((size - 1) >> 8);
  return out + body;
}

TEST(GzipReader, PlainGzipAndSeveralMembersReadTheSame) {
  for (uint64_t seed = 0; seed < 8; ++seed) {
    SCOPED_TRACE(seed);
    RandomStream random(seed, "gzip");
    const std::string a = random_text(random, random.below(600'000));
    const std::string b = random_text(random, random.below(3'000));
    EXPECT_EQ(read_all(a + b), a + b);
    EXPECT_EQ(read_all(gzip(a) + gzip("") + gzip(b)), a + b);
    const std::string c = random_text(random, 20'000);
    EXPECT_EQ(read_all(bgzip_member(c) + bgzip_member(b) + kBgzipEnd), c + b);
  }
}

TEST(GzipReader, AnyCutOfAGzipFileIsAnError) {
  RandomStream random(1, "gzip cut");
  const std::string whole = gzip(random_text(random, 2'000));
  for (size_t size = 2; size < whole.size(); ++size) {
    EXPECT_THROW(read_all(whole.substr(0, size)), UserError) << size;
  }
}

TEST(GzipReader, BgzipCutBetweenMembersIsAnError) {
  const std::string member = bgzip_member("ACGT");
  EXPECT_EQ(read_all(member + kBgzipEnd), "ACGT");
  EXPECT_THROW(read_all(member + member), UserError);
}

TEST(GzipReader, DamageAndTrailingBytesAreErrors) {
  const std::string whole = gzip("ACGTACGTTTTT\n");
  EXPECT_THROW(read_all(whole + "more"), UserError);
  std::string damaged = whole;
  damaged[damaged.size() - 6] ^= 1;  // in the checksum
  EXPECT_THROW(read_all(damaged), UserError);
}

}  // namespace
}  // namespace longspan
