// Documents held in memory: for tests, benchmarks and programs that make their own tokens.
//
//   MemorySource source({{{1, 2, 3}, {}}, {{4}, {0.5F}}});     // two documents, the second
//   weighted
//
// Document i is called "document i" unless names are given. Immutable: any number of threads.
#pragma once

#include <string>
#include <vector>

#include "data/document_source.h"

namespace longspan {

class MemorySource : public DocumentSource {
 public:
  explicit MemorySource(std::vector<DocumentContent> documents,
                        std::vector<std::string> names = {});

  int64_t count() const override { return static_cast<int64_t>(documents_.size()); }
  int64_t length(int64_t document) const override;
  std::string name(int64_t document) const override;
  DocumentContent read(int64_t document, const Range& range, int64_t epoch) const override;
  int64_t vocabulary_bound() const override { return vocabulary_bound_; }
  std::vector<FileFingerprint> fingerprints() const override;

 private:
  const DocumentContent& at(int64_t document) const;

  std::vector<DocumentContent> documents_;
  std::vector<std::string> names_;
  int64_t vocabulary_bound_ = 0;
};

// The part `range` of a document's content.
DocumentContent slice(const DocumentContent& content, const Range& range);

}  // namespace longspan
