// One micro-batch with its tokens: whole documents, one after the other, on a line.
//
//   const MicroBatch batch = materialize(*source, packer.next(), {.vocabulary_size = 257});
//
// Position t of the line has the token tokens[t], the token it has to predict targets[t] (the next
// one of the same document, -1 at a document's last token) and the loss weight of that prediction
// weights[t] (0 where there is no target). The loss of a step is the sum over its micro-batches of
// weight x token loss, divided by the sum of their weight_sum; a document of one token, and the
// last token of a piece of a split document, add nothing.
//
// A pure function of its arguments; a MicroBatch is a value.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "data/document_source.h"
#include "data/packer.h"

namespace longspan {

struct MicroBatch {
  int64_t epoch = 0;
  std::vector<DocumentPiece> pieces;     // what lies on the line, in order
  std::vector<std::string> names;        // of each piece's document
  std::vector<int64_t> document_begins;  // first position of each piece, and the line's length
  std::vector<int32_t> tokens;
  std::vector<int32_t> targets;
  std::vector<float> weights;
  double weight_sum = 0;

  int64_t size() const { return static_cast<int64_t>(tokens.size()); }
};

struct MaterializeOptions {
  // A token id this large is a UserError naming document and position.
  int64_t vocabulary_size = 0;
};

MicroBatch materialize(const DocumentSource& source, const PackedMicroBatch& packed,
                       const MaterializeOptions& options);

}  // namespace longspan
