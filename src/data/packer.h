// Packs whole documents into the micro-batches of an epoch.
//
// Documents are taken in an order drawn from the seed and put into the first of a few open
// micro-batches with room for them; when none has room, the fullest is closed. The closed ones are
// then shuffled, so that a long document, which fills a micro-batch alone, may come at any time.
// Nothing depends on the number of ranks, on threads or on the clock.
//
//   Packer packer(document_lengths(*source), {.seed = 1, .micro_batch_tokens = 65536}, names);
//   PackedMicroBatch batch = packer.next();      // rolls over into the next epoch by itself
//   const DataCursor cursor = packer.cursor();   // later: packer.seek(cursor); same sequence
//
// Guarantees: each document that is not left out lies in exactly one micro-batch of an epoch,
// whole; no micro-batch exceeds micro_batch_tokens; no padding. A document longer than that is an
// error, or is skipped, or is split into pieces of micro_batch_tokens that count as documents of
// their own: positions restart, and the last token of a piece predicts nothing. Each is counted in
// the report. Documents without tokens are left out and counted. Time O(n); an object belongs to
// one thread.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "base/range.h"

namespace longspan {

enum class Overlong { kError, kSkip, kSplit };

struct PackOptions {
  uint64_t seed = 0;
  int64_t micro_batch_tokens = 0;
  Overlong overlong = Overlong::kError;
  bool shuffle = true;  // off: documents in their own order (evaluation)
};

// Tokens `range` of a document; the whole of it, unless it was split.
struct DocumentPiece {
  int64_t document = 0;
  Range range;

  bool operator==(const DocumentPiece&) const = default;
};

struct PackReport {
  int64_t epoch = 0;
  int64_t documents_used = 0;
  int64_t tokens_used = 0;
  int64_t documents_skipped = 0;  // longer than a micro-batch
  int64_t tokens_skipped = 0;
  int64_t documents_split = 0;  // also counted as used
  int64_t split_pieces = 0;
  int64_t documents_empty = 0;
  int64_t micro_batches = 0;
  int64_t micro_batch_tokens = 0;

  // Tokens in micro-batches over the tokens that would fit, in percent.
  double fill_percent() const;
  // One line for the log: what was used, what was left out.
  std::string describe() const;
  // "71 of 186 documents, 7038771 tokens (84.6 % of all): longer than a micro-batch of 32768"
  std::string describe_skipped() const;
};

// The micro-batches of one epoch, in the order they are trained. An immutable value.
class EpochPlan {
 public:
  int64_t micro_batches() const { return static_cast<int64_t>(begins_.size()) - 1; }
  std::span<const DocumentPiece> pieces(int64_t micro_batch) const;
  const PackReport& report() const { return report_; }

 private:
  friend class EpochPlanner;
  std::vector<DocumentPiece> pieces_;
  std::vector<int64_t> begins_{0};  // first piece of each micro-batch, and the end
  PackReport report_;
};

using DocumentNames = std::function<std::string(int64_t document)>;

// UserError if no document can be used, or if one is too long and `overlong` is kError. `names` is
// asked only for that message; without it documents are called by number.
EpochPlan plan_epoch(std::span<const int64_t> lengths, const PackOptions& options, int64_t epoch,
                     const DocumentNames& names = {});

// The next micro-batch to be taken.
struct DataCursor {
  int64_t epoch = 0;
  int64_t micro_batch = 0;

  bool operator==(const DataCursor&) const = default;
};

struct PackedMicroBatch {
  int64_t epoch = 0;
  std::vector<DocumentPiece> pieces;

  int64_t tokens() const;
};

class Packer {
 public:
  Packer(std::vector<int64_t> lengths, const PackOptions& options, DocumentNames names = {});

  PackedMicroBatch next();
  DataCursor cursor() const { return cursor_; }
  // UserError if that epoch has no such micro-batch: the cursor belongs to other data or options.
  void seek(const DataCursor& cursor);
  // Of the epoch the cursor is in.
  const EpochPlan& epoch_plan() const { return plan_; }

 private:
  std::vector<int64_t> lengths_;
  PackOptions options_;
  DocumentNames names_;
  DataCursor cursor_;
  EpochPlan plan_;
};

// "error", "skip" or "split"; UserError otherwise.
Overlong parse_overlong(const std::string& word);

}  // namespace longspan
