// The bytes of a file, decompressed where it is gzip or bgzip, handed out piece by piece.
//
//   GzipReader reader(file.characters(), "genome.fa.gz");
//   while (!reader.next().empty()) parser.feed(reader.piece());
//
// Plain bytes come as one piece. A gzip file may have several members, one after the other: bgzip
// files are that, and their empty last member proves that nothing was cut off. A file that is cut,
// damaged, or has other bytes after its last member is a UserError naming `origin`; what was handed
// out before it was raised is not to be used. Memory: one buffer of 256 KiB, whatever the file
// says. The content must outlive the reader. An object belongs to one thread.
#pragma once

#include <memory>
#include <string>
#include <string_view>

namespace longspan {

class GzipReader {
 public:
  GzipReader(std::string_view content, std::string origin);
  ~GzipReader();
  GzipReader(const GzipReader&) = delete;
  GzipReader& operator=(const GzipReader&) = delete;

  // Moves on to the next piece and returns it; empty at the end.
  std::string_view next();
  std::string_view piece() const { return piece_; }

  bool is_compressed() const { return inflater_ != nullptr; }
  bool is_bgzip() const { return is_bgzip_; }

 private:
  struct Inflater;
  std::string_view inflate_piece();

  std::string_view rest_;
  std::string origin_;
  std::unique_ptr<Inflater> inflater_;  // null for plain bytes
  bool is_bgzip_ = false;
  std::string_view piece_;
};

}  // namespace longspan
