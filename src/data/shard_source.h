// The documents of a Megatron token shard with longspan's sidecars, where they are there.
//
//   ShardSource shard("shards/x");        // x.bin, x.idx; x.weights and x.names if present
//
// Without x.names document i is called "shards/x#i". Opening takes the same time for any number of
// documents. Immutable: any number of threads may read.
#pragma once

#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "data/document_source.h"
#include "data/sidecars.h"
#include "formats/megatron_shard.h"

namespace longspan {

class ShardSource : public DocumentSource {
 public:
  explicit ShardSource(const std::filesystem::path& path);

  int64_t count() const override { return shard_.documents(); }
  int64_t length(int64_t document) const override { return shard_.length(document); }
  std::string name(int64_t document) const override;
  DocumentContent read(int64_t document, const Range& range, int64_t epoch) const override;
  int64_t vocabulary_bound() const override;
  std::vector<FileFingerprint> fingerprints() const override;

 private:
  MegatronShard shard_;
  std::optional<WeightSidecar> weights_;
  std::optional<NameSidecar> names_;
};

}  // namespace longspan
