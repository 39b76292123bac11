#include "data/combined_source.h"

#include <algorithm>

#include "base/check.h"

namespace longspan {

CombinedSource::CombinedSource(std::vector<std::unique_ptr<DocumentSource>> sources)
    : sources_(std::move(sources)) {
  int64_t end = 0;
  for (const auto& source : sources_) {
    end += source->count();
    ends_.push_back(end);
  }
}

std::pair<const DocumentSource&, int64_t> CombinedSource::find(int64_t document) const {
  LONGSPAN_CHECK(document >= 0 && document < count(), "document ", document, " of ", count());
  const auto end = std::upper_bound(ends_.begin(), ends_.end(), document);
  const auto position = static_cast<size_t>(end - ends_.begin());
  return {*sources_[position], document - (*end - sources_[position]->count())};
}

int64_t CombinedSource::length(int64_t document) const {
  const auto [source, own_document] = find(document);
  return source.length(own_document);
}

std::string CombinedSource::name(int64_t document) const {
  const auto [source, own_document] = find(document);
  return source.name(own_document);
}

DocumentContent CombinedSource::read(int64_t document, const Range& range, int64_t epoch) const {
  const auto [source, own_document] = find(document);
  return source.read(own_document, range, epoch);
}

Orientation CombinedSource::orientation(int64_t document, int64_t epoch) const {
  const auto [source, own_document] = find(document);
  return source.orientation(own_document, epoch);
}

int64_t CombinedSource::vocabulary_bound() const {
  int64_t bound = 0;
  for (const auto& source : sources_) bound = std::max(bound, source->vocabulary_bound());
  return bound;
}

std::vector<FileFingerprint> CombinedSource::fingerprints() const {
  std::vector<FileFingerprint> all;
  for (const auto& source : sources_) {
    const std::vector<FileFingerprint> own = source->fingerprints();
    all.insert(all.end(), own.begin(), own.end());
  }
  return all;
}

std::vector<std::string> CombinedSource::notes() const {
  std::vector<std::string> all;
  for (const auto& source : sources_) {
    const std::vector<std::string> own = source->notes();
    all.insert(all.end(), own.begin(), own.end());
  }
  return all;
}

}  // namespace longspan
