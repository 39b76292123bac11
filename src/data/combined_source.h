// Several document sources as one: the documents of the first, then those of the second, and so on.
//
//   CombinedSource all(std::move(sources));      // owns them
//
// Immutable: any number of threads may read.
#pragma once

#include <memory>
#include <utility>
#include <vector>

#include "data/document_source.h"

namespace longspan {

class CombinedSource : public DocumentSource {
 public:
  explicit CombinedSource(std::vector<std::unique_ptr<DocumentSource>> sources);

  int64_t count() const override { return ends_.empty() ? 0 : ends_.back(); }
  int64_t length(int64_t document) const override;
  std::string name(int64_t document) const override;
  DocumentContent read(int64_t document, const Range& range, int64_t epoch) const override;
  Orientation orientation(int64_t document, int64_t epoch) const override;
  int64_t vocabulary_bound() const override;
  std::vector<FileFingerprint> fingerprints() const override;
  std::vector<std::string> notes() const override;

 private:
  // The source that holds a document, and the document's number in it.
  std::pair<const DocumentSource&, int64_t> find(int64_t document) const;

  std::vector<std::unique_ptr<DocumentSource>> sources_;
  std::vector<int64_t> ends_;  // documents up to and with each source
};

}  // namespace longspan
