// Reads nucleotide documents from either strand, and circular ones from any start.
//
// With `reverse_complement` each document is read forward or as its reverse complement, and a
// circular document starts at a position of its own, both drawn from (seed, document, epoch): the
// choice is the same for any number of ranks and at every resume. A circular document is read once
// round, over its deposited end and on from its start; a linear one never wraps. Weights turn with
// their tokens, and an end-of-document token stays last. orientation() and forward_position() lead
// back to the coordinates of the file.
//
//   StrandSource strands(std::move(genome), tokenizer, {.seed = 1, .reverse_complement = true},
//                        is_circular);
//
// Works on any source whose tokens are the tokenizer's bases: FASTA, or shards packed from it.
// Immutable: any number of threads may read.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "data/document_source.h"
#include "data/tokenizer.h"

namespace longspan {

struct StrandOptions {
  uint64_t seed = 0;
  bool reverse_complement = false;
};

class StrandSource : public DocumentSource {
 public:
  // `is_circular[i]` for document i; empty: none.
  StrandSource(std::unique_ptr<DocumentSource> source, const Tokenizer& tokenizer,
               const StrandOptions& options, std::vector<bool> is_circular);

  int64_t count() const override { return source_->count(); }
  int64_t length(int64_t document) const override { return source_->length(document); }
  std::string name(int64_t document) const override { return source_->name(document); }
  DocumentContent read(int64_t document, const Range& range, int64_t epoch) const override;
  Orientation orientation(int64_t document, int64_t epoch) const override;
  int64_t vocabulary_bound() const override { return source_->vocabulary_bound(); }
  std::vector<FileFingerprint> fingerprints() const override { return source_->fingerprints(); }
  std::vector<std::string> notes() const override { return source_->notes(); }

 private:
  int64_t turning_length(int64_t document) const;

  std::unique_ptr<DocumentSource> source_;
  Tokenizer tokenizer_;
  StrandOptions options_;
  std::vector<bool> is_circular_;
};

}  // namespace longspan
