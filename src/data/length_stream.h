// Document lengths without documents: the streams on which attention planners are compared.
//
//   pretrain:C   a digitised pretraining histogram: nearly uniform to 6K tokens, a thin flat tail.
//                Every length is scaled by C / 64K
//   prolong:C    long-document data: about lognormal, with a Pareto tail. A document of 64K or more
//                becomes exactly C tokens with chance `long_ratio`; nothing is scaled
//   hist:C       a published histogram of 14 bins, uniform within each, as it is
//
// In the first two, documents below 64K (before scaling) have weight 1/2 and longer ones weight 4,
// and lengths are rounded up to multiples of 16. All are laid in random order into packs of exactly
// C tokens; what crosses a pack's end is a document of its own in the next pack.
//
//   LengthStream stream("pretrain:512K", seed);
//   std::vector<int64_t> lengths = stream.next_pack();      // sums to 512K
//
// The same name, seed and calls give the same lengths. Endless; an object belongs to one thread.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

namespace longspan {

struct LengthStreamOptions {
  double long_ratio = 0.3;  // of prolong
};

// Whole documents, before the cut at pack ends.
class DocumentLengths {
 public:
  virtual ~DocumentLengths() = default;
  virtual int64_t next() = 0;
};

class LengthStream {
 public:
  // "NAME:LEN"; LEN is a number of tokens, with K, M or G for powers of 1024. UserError that says
  // what is possible.
  LengthStream(const std::string& name_and_length, uint64_t seed,
               const LengthStreamOptions& options = {});

  int64_t pack_tokens() const { return pack_tokens_; }
  // The rest of the pack that has begun, or a whole one.
  std::vector<int64_t> next_pack() { return next_tokens(pack_room_); }
  // Documents of exactly so many tokens: cut at pack ends, and where the tokens end.
  std::vector<int64_t> next_tokens(int64_t tokens);

 private:
  std::unique_ptr<DocumentLengths> documents_;
  int64_t pack_tokens_ = 0;
  int64_t pack_room_ = 0;      // of the pack that has begun
  int64_t document_rest_ = 0;  // of the document that has begun
};

std::vector<std::string> length_stream_names();

// The documents that the stream of this name lays into packs.
std::unique_ptr<DocumentLengths> document_lengths(const std::string& name, int64_t pack_tokens,
                                                  uint64_t seed,
                                                  const LengthStreamOptions& options = {});

}  // namespace longspan
