#include "data/shard_source.h"

#include "base/error.h"

namespace longspan {

ShardSource::ShardSource(const std::filesystem::path& path) : shard_(path) {
  const std::filesystem::path weights = with_suffix(shard_.prefix(), ".weights");
  if (std::filesystem::exists(weights)) {
    weights_.emplace(weights, shard_.documents(), shard_.bin_bytes());
  }
  const std::filesystem::path names = with_suffix(shard_.prefix(), ".names");
  if (std::filesystem::exists(names)) {
    names_.emplace(names, shard_.documents(), shard_.bin_bytes());
  }
}

std::string ShardSource::name(int64_t document) const {
  if (names_) return std::string(names_->name(document));
  return text(shard_.prefix().string(), '#', document);
}

DocumentContent ShardSource::read(int64_t document, const Range& range, int64_t) const {
  DocumentContent content{shard_.tokens(document, range), {}};
  if (weights_) content.weights = weights_->read(document, range, shard_.length(document));
  return content;
}

int64_t ShardSource::vocabulary_bound() const {
  switch (token_bytes(shard_.index().token_type())) {
    case 1:
      return int64_t{1} << 8;
    case 2:
      return int64_t{1} << 16;
    default:
      return int64_t{1} << 31;
  }
}

std::vector<FileFingerprint> ShardSource::fingerprints() const {
  std::vector<FileFingerprint> fingerprints{fingerprint_file(with_suffix(shard_.prefix(), ".idx")),
                                            fingerprint_file(with_suffix(shard_.prefix(), ".bin"))};
  if (weights_) fingerprints.push_back(fingerprint_file(weights_->path()));
  if (names_) fingerprints.push_back(fingerprint_file(names_->path()));
  return fingerprints;
}

}  // namespace longspan
