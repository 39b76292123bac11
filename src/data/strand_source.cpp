#include "data/strand_source.h"

#include <algorithm>
#include <utility>

#include "base/check.h"
#include "base/random.h"

namespace longspan {
namespace {

// Appends `part`, making weights explicit as soon as one of the two sides has them.
void append(const DocumentContent& part, DocumentContent& whole) {
  if (!part.weights.empty() && whole.weights.empty()) whole.weights.resize(whole.tokens.size(), 1);
  whole.tokens.insert(whole.tokens.end(), part.tokens.begin(), part.tokens.end());
  whole.weights.insert(whole.weights.end(), part.weights.begin(), part.weights.end());
  if (!whole.weights.empty()) whole.weights.resize(whole.tokens.size(), 1);
}

}  // namespace

StrandSource::StrandSource(std::unique_ptr<DocumentSource> source, const Tokenizer& tokenizer,
                           const StrandOptions& options, std::vector<bool> is_circular)
    : source_(std::move(source)),
      tokenizer_(tokenizer),
      options_(options),
      is_circular_(std::move(is_circular)) {
  is_circular_.resize(static_cast<size_t>(source_->count()));
}

int64_t StrandSource::turning_length(int64_t document) const {
  const int64_t length = source_->length(document);
  if (length == 0 || !tokenizer_.end_of_document()) return length;
  const int32_t last = source_->read(document, {length - 1, length}, kAsStored).tokens[0];
  return last == *tokenizer_.end_of_document() ? length - 1 : length;
}

Orientation StrandSource::orientation(int64_t document, int64_t epoch) const {
  Orientation orientation{false, 0, turning_length(document)};
  if (epoch == kAsStored) return orientation;
  // Keyed by epoch and then by document, so that no two pairs share a stream.
  const uint64_t epoch_seed =
      RandomStream(options_.seed, "strands of an epoch", static_cast<uint64_t>(epoch)).next();
  RandomStream random(epoch_seed, "strand of a document", static_cast<uint64_t>(document));
  const bool is_other_strand = random.below(2) == 1;
  orientation.is_reversed = options_.reverse_complement && is_other_strand;
  if (is_circular_[static_cast<size_t>(document)] && orientation.turning_length > 0) {
    orientation.rotation = random.between(0, orientation.turning_length - 1);
  }
  return orientation;
}

DocumentContent StrandSource::read(int64_t document, const Range& range, int64_t epoch) const {
  const Orientation turn = orientation(document, epoch);
  const int64_t length = turn.turning_length;
  const Range turning = intersect(range, {0, length});
  // The same tokens counted along the file, from the rotated start; they may run over the end once.
  const Range along =
      turn.is_reversed ? Range{length - turning.end, length - turning.begin} : turning;
  const Range file = shift(along, turn.rotation);
  DocumentContent content;
  for (const int64_t lap : {int64_t{0}, length}) {
    const Range part = intersect(file, {lap, lap + length});
    if (!part.empty()) append(source_->read(document, shift(part, -lap), epoch), content);
  }
  if (turn.is_reversed) {
    std::reverse(content.tokens.begin(), content.tokens.end());
    std::reverse(content.weights.begin(), content.weights.end());
    for (int32_t& id : content.tokens) id = tokenizer_.complement(id);
  }
  const Range tail = intersect(range, {length, source_->length(document)});
  if (!tail.empty()) append(source_->read(document, tail, epoch), content);
  return content;
}

}  // namespace longspan
