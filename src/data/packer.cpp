#include "data/packer.h"

#include <algorithm>
#include <iomanip>
#include <numeric>
#include <sstream>

#include "base/check.h"
#include "base/random.h"

namespace longspan {
namespace {

// More open micro-batches fill better and cost more time per document; with 32 the rest that stays
// empty is well under a percent on real length distributions, except in the epoch's last ones.
constexpr size_t kOpenMicroBatches = 32;

std::vector<int64_t> draw_order(const PackOptions& options, const char* purpose, int64_t epoch,
                                int64_t count) {
  if (options.shuffle) {
    return RandomStream(options.seed, purpose, static_cast<uint64_t>(epoch)).permutation(count);
  }
  std::vector<int64_t> order(static_cast<size_t>(count));
  std::iota(order.begin(), order.end(), 0);
  return order;
}

}  // namespace

// Builds one EpochPlan.
class EpochPlanner {
 public:
  EpochPlanner(std::span<const int64_t> lengths, const PackOptions& options, int64_t epoch,
               const DocumentNames& names)
      : lengths_(lengths), options_(options), epoch_(epoch), names_(names) {
    LONGSPAN_CHECK(options.micro_batch_tokens >= 1, "micro_batch_tokens ",
                   options.micro_batch_tokens);
    plan_.report_.epoch = epoch;
    plan_.report_.micro_batch_tokens = options.micro_batch_tokens;
  }

  EpochPlan run() {
    const auto count = static_cast<int64_t>(lengths_.size());
    for (const int64_t document : draw_order(options_, "document order", epoch_, count)) {
      add_document(document);
    }
    for (const OpenMicroBatch& open : open_) closed_.push_back(open.number);
    check_any_used();
    emit();
    return std::move(plan_);
  }

 private:
  struct OpenMicroBatch {
    int64_t number = 0;
    int64_t free_tokens = 0;
  };

  void add_document(int64_t document) {
    PackReport& report = plan_.report_;
    const int64_t length = lengths_[static_cast<size_t>(document)];
    if (length == 0) {
      ++report.documents_empty;
      return;
    }
    if (length > options_.micro_batch_tokens) {
      if (options_.overlong == Overlong::kError) fail_overlong(document);
      if (options_.overlong == Overlong::kSkip) {
        ++report.documents_skipped;
        report.tokens_skipped += length;
        return;
      }
      ++report.documents_split;
    }
    ++report.documents_used;
    report.tokens_used += length;
    for (int64_t begin = 0; begin < length; begin += options_.micro_batch_tokens) {
      const Range range{begin, std::min(begin + options_.micro_batch_tokens, length)};
      if (length > options_.micro_batch_tokens) ++report.split_pieces;
      place({document, range});
    }
  }

  void place(const DocumentPiece& piece) {
    const int64_t tokens = piece.range.size();
    auto slot = std::find_if(open_.begin(), open_.end(), [&](const OpenMicroBatch& open) {
      return open.free_tokens >= tokens;
    });
    if (slot == open_.end()) {
      if (open_.size() == kOpenMicroBatches) {
        close(std::min_element(open_.begin(), open_.end(),
                               [](const OpenMicroBatch& a, const OpenMicroBatch& b) {
                                 return a.free_tokens < b.free_tokens;
                               }));
      }
      open_.push_back({micro_batches_++, options_.micro_batch_tokens});
      slot = open_.end() - 1;
    }
    pieces_.push_back(piece);
    micro_batch_of_.push_back(slot->number);
    slot->free_tokens -= tokens;
    if (slot->free_tokens == 0) close(slot);
  }

  void close(std::vector<OpenMicroBatch>::iterator slot) {
    closed_.push_back(slot->number);
    open_.erase(slot);
  }

  // Sorts the pieces by the final place of their micro-batch, keeping their order inside it.
  void emit() {
    const std::vector<int64_t> order =
        draw_order(options_, "micro-batch order", epoch_, micro_batches_);
    std::vector<int64_t> place_of(static_cast<size_t>(micro_batches_));
    for (size_t place = 0; place < order.size(); ++place) {
      const int64_t number = closed_[static_cast<size_t>(order[place])];
      place_of[static_cast<size_t>(number)] = static_cast<int64_t>(place);
    }
    plan_.begins_.assign(static_cast<size_t>(micro_batches_) + 1, 0);
    for (int64_t& number : micro_batch_of_) {
      number = place_of[static_cast<size_t>(number)];
      ++plan_.begins_[static_cast<size_t>(number) + 1];
    }
    std::partial_sum(plan_.begins_.begin(), plan_.begins_.end(), plan_.begins_.begin());
    std::vector<int64_t> next(plan_.begins_.begin(), plan_.begins_.end() - 1);
    plan_.pieces_.resize(pieces_.size());
    for (size_t idx = 0; idx < pieces_.size(); ++idx) {
      int64_t& position = next[static_cast<size_t>(micro_batch_of_[idx])];
      plan_.pieces_[static_cast<size_t>(position++)] = pieces_[idx];
    }
    plan_.report_.micro_batches = micro_batches_;
  }

  std::string name_of(int64_t document) const {
    return names_ ? names_(document) : text("number ", document);
  }

  [[noreturn]] void fail_overlong(int64_t document) const {
    throw UserError(text("document ", name_of(document), " has ",
                         lengths_[static_cast<size_t>(document)], " tokens, a micro-batch holds ",
                         options_.micro_batch_tokens,
                         "; raise batch.micro_batch_tokens, or set data.overlong to \"skip\" "
                         "(leave such documents out) or \"split\" (cut them into pieces)"));
  }

  void check_any_used() const {
    if (plan_.report_.documents_used > 0) return;
    const auto first_of = [&](int64_t number, auto is_one) {
      if (number == 0) return std::string();
      const auto found = std::find_if(lengths_.begin(), lengths_.end(), is_one);
      return text(" (", name_of(found - lengths_.begin()), number > 1 ? ", ..." : "", ")");
    };
    const PackReport& report = plan_.report_;
    throw UserError(text(
        "no document is left to use: of ", lengths_.size(), " documents, ", report.documents_empty,
        " are empty", first_of(report.documents_empty, [](int64_t length) { return length == 0; }),
        " and ", report.documents_skipped, " are longer than a micro-batch of ",
        options_.micro_batch_tokens, " tokens",
        first_of(report.documents_skipped, [](int64_t length) { return length > 0; }),
        "; name other documents, or raise batch.micro_batch_tokens"));
  }

  std::span<const int64_t> lengths_;
  const PackOptions& options_;
  int64_t epoch_;
  const DocumentNames& names_;
  std::vector<OpenMicroBatch> open_;
  std::vector<int64_t> closed_;  // numbers of micro-batches, in the order they were closed
  int64_t micro_batches_ = 0;
  std::vector<DocumentPiece> pieces_;    // in the order they were placed
  std::vector<int64_t> micro_batch_of_;  // of each of them
  EpochPlan plan_;
};

double PackReport::fill_percent() const {
  if (micro_batches == 0) return 0;
  return 100.0 * static_cast<double>(tokens_used) /
         (static_cast<double>(micro_batches) * static_cast<double>(micro_batch_tokens));
}

std::string PackReport::describe() const {
  std::ostringstream line;
  line << "epoch " << epoch << ": " << documents_used << " documents, " << tokens_used
       << " tokens in " << micro_batches << " micro-batches of " << micro_batch_tokens << " (fill "
       << std::fixed << std::setprecision(1) << fill_percent() << " %)";
  if (documents_split > 0) {
    line << ", split " << documents_split << " of them into " << split_pieces << " pieces";
  }
  if (documents_empty > 0) line << ", left out " << documents_empty << " empty ones";
  if (documents_skipped > 0) line << ", left out " << describe_skipped();
  return line.str();
}

std::string PackReport::describe_skipped() const {
  const double percent = 100.0 * static_cast<double>(tokens_skipped) /
                         static_cast<double>(tokens_used + tokens_skipped);
  return text(documents_skipped, " of ", documents_used + documents_skipped + documents_empty,
              " documents, ", tokens_skipped, " tokens (", std::fixed, std::setprecision(1),
              percent, " % of all): longer than a micro-batch of ", micro_batch_tokens);
}

std::span<const DocumentPiece> EpochPlan::pieces(int64_t micro_batch) const {
  LONGSPAN_CHECK(micro_batch >= 0 && micro_batch < micro_batches(), "micro-batch ", micro_batch,
                 " of ", micro_batches());
  const auto begin = static_cast<size_t>(begins_[static_cast<size_t>(micro_batch)]);
  const auto end = static_cast<size_t>(begins_[static_cast<size_t>(micro_batch) + 1]);
  return std::span(pieces_).subspan(begin, end - begin);
}

EpochPlan plan_epoch(std::span<const int64_t> lengths, const PackOptions& options, int64_t epoch,
                     const DocumentNames& names) {
  return EpochPlanner(lengths, options, epoch, names).run();
}

int64_t PackedMicroBatch::tokens() const {
  int64_t sum = 0;
  for (const DocumentPiece& piece : pieces) sum += piece.range.size();
  return sum;
}

Packer::Packer(std::vector<int64_t> lengths, const PackOptions& options, DocumentNames names)
    : lengths_(std::move(lengths)),
      options_(options),
      names_(std::move(names)),
      plan_(plan_epoch(lengths_, options_, 0, names_)) {}

PackedMicroBatch Packer::next() {
  if (cursor_.micro_batch == plan_.micro_batches()) seek({cursor_.epoch + 1, 0});
  const std::span<const DocumentPiece> pieces = plan_.pieces(cursor_.micro_batch);
  ++cursor_.micro_batch;
  return {cursor_.epoch, {pieces.begin(), pieces.end()}};
}

void Packer::seek(const DataCursor& cursor) {
  if (cursor.epoch < 0) throw UserError(text("data cursor: epoch ", cursor.epoch));
  if (cursor.epoch != plan_.report().epoch) {
    plan_ = plan_epoch(lengths_, options_, cursor.epoch, names_);
  }
  cursor_ = {cursor.epoch, 0};
  if (cursor.micro_batch < 0 || cursor.micro_batch > plan_.micro_batches()) {
    throw UserError(text("data cursor: micro-batch ", cursor.micro_batch, " of epoch ",
                         cursor.epoch, ", which has ", plan_.micro_batches(),
                         "; the documents, micro_batch_tokens or the seed are not those of the "
                         "run that saved it"));
  }
  cursor_ = cursor;
}

Overlong parse_overlong(const std::string& word) {
  if (word == "error") return Overlong::kError;
  if (word == "skip") return Overlong::kSkip;
  if (word == "split") return Overlong::kSplit;
  throw UserError(text("overlong = \"", word, "\"; it must be \"error\", \"skip\" or \"split\""));
}

}  // namespace longspan
