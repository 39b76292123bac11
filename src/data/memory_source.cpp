#include "data/memory_source.h"

#include <algorithm>
#include <span>
#include <utility>

#include "base/check.h"
#include "base/random.h"

namespace longspan {

MemorySource::MemorySource(std::vector<DocumentContent> documents, std::vector<std::string> names)
    : documents_(std::move(documents)), names_(std::move(names)) {
  LONGSPAN_CHECK(names_.empty() || names_.size() == documents_.size(), "names ", names_.size(),
                 ", documents ", documents_.size());
  for (const DocumentContent& content : documents_) {
    LONGSPAN_CHECK(content.weights.empty() || content.weights.size() == content.tokens.size(),
                   "weights ", content.weights.size(), ", tokens ", content.tokens.size());
    for (const int32_t id : content.tokens) {
      vocabulary_bound_ = std::max(vocabulary_bound_, int64_t{id} + 1);
    }
  }
}

const DocumentContent& MemorySource::at(int64_t document) const {
  LONGSPAN_CHECK(document >= 0 && document < count(), "document ", document, " of ", count());
  return documents_[static_cast<size_t>(document)];
}

int64_t MemorySource::length(int64_t document) const {
  return static_cast<int64_t>(at(document).tokens.size());
}

std::string MemorySource::name(int64_t document) const {
  return names_.empty() ? text("document ", document) : names_[static_cast<size_t>(document)];
}

DocumentContent MemorySource::read(int64_t document, const Range& range, int64_t) const {
  return slice(at(document), range);
}

std::vector<FileFingerprint> MemorySource::fingerprints() const {
  FileFingerprint fingerprint{"memory", 0, hash_bytes("")};
  for (const DocumentContent& content : documents_) {
    const auto bytes = std::as_bytes(std::span(content.tokens));
    fingerprint.bytes += static_cast<int64_t>(bytes.size());
    fingerprint.sample_hash = hash_bytes(
        {reinterpret_cast<const char*>(bytes.data()), bytes.size()}, fingerprint.sample_hash);
  }
  return {fingerprint};
}

DocumentContent slice(const DocumentContent& content, const Range& range) {
  LONGSPAN_CHECK(Range(0, static_cast<int64_t>(content.tokens.size())).contains(range) &&
                     range.begin <= range.end,
                 "part ", range, " of ", content.tokens.size(), " tokens");
  DocumentContent part;
  part.tokens.assign(content.tokens.begin() + range.begin, content.tokens.begin() + range.end);
  if (!content.weights.empty()) {
    part.weights.assign(content.weights.begin() + range.begin, content.weights.begin() + range.end);
  }
  return part;
}

}  // namespace longspan
