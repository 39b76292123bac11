#include "formats/gzip_reader.h"

#include <zlib.h>

#include <algorithm>
#include <utility>
#include <vector>

#include "base/check.h"

namespace longspan {
namespace {

constexpr size_t kBufferBytes = size_t{256} << 10;
constexpr size_t kMaxInputBytes = size_t{1} << 30;  // zlib counts input in 32 bits
constexpr int kGzipWindowBits = 15 + 16;            // largest window, gzip wrapper only

// The empty member at the end of each bgzip file.
constexpr std::string_view kBgzipEnd{
    "\x1f\x8b\x08\x04\0\0\0\0\0\xff\x06\0\x42\x43\x02\0\x1b\0\x03\0\0\0\0\0\0\0\0\0", 28};

// bgzip marks each member with an extra field of this kind as its first.
bool starts_as_bgzip(std::string_view content) {
  return content.size() >= 18 && content[3] == '\x04' &&
         content.substr(12, 4) == std::string_view("BC\x02\0", 4);
}

}  // namespace

struct GzipReader::Inflater {
  z_stream stream{};
  std::vector<char> buffer = std::vector<char>(kBufferBytes);
  bool in_member = true;  // bytes of a member have begun and its end has not come

  Inflater() { LONGSPAN_CHECK(inflateInit2(&stream, kGzipWindowBits) == Z_OK, "inflateInit2"); }
  ~Inflater() { inflateEnd(&stream); }
  Inflater(const Inflater&) = delete;
  Inflater& operator=(const Inflater&) = delete;
};

GzipReader::GzipReader(std::string_view content, std::string origin)
    : rest_(content), origin_(std::move(origin)) {
  if (!content.starts_with("\x1f\x8b")) return;
  is_bgzip_ = starts_as_bgzip(content);
  if (is_bgzip_ && !content.ends_with(kBgzipEnd)) {
    throw UserError(
        text(origin_, ": the end marker of bgzip is missing: truncated; copy it again"));
  }
  inflater_ = std::make_unique<Inflater>();
}

GzipReader::~GzipReader() = default;

std::string_view GzipReader::next() {
  piece_ = is_compressed() ? inflate_piece() : std::exchange(rest_, {});
  return piece_;
}

std::string_view GzipReader::inflate_piece() {
  z_stream& stream = inflater_->stream;
  stream.next_out = reinterpret_cast<Bytef*>(inflater_->buffer.data());
  stream.avail_out = static_cast<uInt>(kBufferBytes);
  while (stream.avail_out > 0) {
    if (!inflater_->in_member) {
      if (rest_.empty()) break;
      inflateReset(&stream);
      inflater_->in_member = true;
    }
    const auto given = static_cast<uInt>(std::min(rest_.size(), kMaxInputBytes));
    // zlib does not write to its input, it only lacks the const.
    stream.next_in = reinterpret_cast<Bytef*>(const_cast<char*>(rest_.data()));
    stream.avail_in = given;
    const int result = inflate(&stream, Z_NO_FLUSH);
    rest_.remove_prefix(given - stream.avail_in);
    if (result == Z_STREAM_END) {
      inflater_->in_member = false;
    } else if (result != Z_OK) {
      throw UserError(text(origin_, ": ",
                           rest_.empty() ? "the gzip data ends too early: truncated"
                                         : "not valid gzip data: damaged",
                           "; copy it again"));
    }
  }
  return {inflater_->buffer.data(), kBufferBytes - stream.avail_out};
}

}  // namespace longspan
