#include "data/micro_batch.h"

#include "base/check.h"

namespace longspan {
namespace {

void check_content(const DocumentContent& content, const Range& range, const std::string& name) {
  LONGSPAN_CHECK(static_cast<int64_t>(content.tokens.size()) == range.size(), "document ", name,
                 " gave ", content.tokens.size(), " tokens for ", range);
  LONGSPAN_CHECK(content.weights.empty() || content.weights.size() == content.tokens.size(),
                 "document ", name, " gave ", content.weights.size(), " weights for ",
                 content.tokens.size(), " tokens");
}

// Appends the document's targets: each token predicts the next one, with that one's weight.
void append_targets(const DocumentContent& content, MicroBatch& batch) {
  for (size_t idx = 1; idx < content.tokens.size(); ++idx) {
    const float weight = content.weights.empty() ? 1.0F : content.weights[idx];
    batch.targets.push_back(content.tokens[idx]);
    batch.weights.push_back(weight);
    batch.weight_sum += weight;
  }
  batch.targets.push_back(-1);
  batch.weights.push_back(0);
}

}  // namespace

MicroBatch materialize(const DocumentSource& source, const PackedMicroBatch& packed,
                       const MaterializeOptions& options) {
  LONGSPAN_CHECK(options.vocabulary_size >= 1, "vocabulary_size ", options.vocabulary_size);
  MicroBatch batch;
  batch.epoch = packed.epoch;
  batch.pieces = packed.pieces;
  const auto line_tokens = static_cast<size_t>(packed.tokens());
  batch.tokens.reserve(line_tokens);
  batch.targets.reserve(line_tokens);
  batch.weights.reserve(line_tokens);
  batch.document_begins.push_back(0);
  for (const DocumentPiece& piece : packed.pieces) {
    LONGSPAN_CHECK(!piece.range.empty(), "document ", piece.document, ", piece ", piece.range);
    const DocumentContent content = source.read(piece.document, piece.range, packed.epoch);
    batch.names.push_back(source.name(piece.document));
    check_content(content, piece.range, batch.names.back());
    check_vocabulary(content.tokens, piece.range.begin, batch.names.back(),
                     options.vocabulary_size);
    batch.tokens.insert(batch.tokens.end(), content.tokens.begin(), content.tokens.end());
    append_targets(content, batch);
    batch.document_begins.push_back(batch.size());
  }
  return batch;
}

}  // namespace longspan
