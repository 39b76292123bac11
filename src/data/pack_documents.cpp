#include "data/pack_documents.h"

#include <algorithm>
#include <numeric>

#include "base/check.h"
#include "data/sidecars.h"
#include "formats/megatron_shard.h"

namespace longspan {
namespace {

constexpr int64_t kReadTokens = int64_t{1} << 22;

// The folder of the shard if it was made, else an empty path.
std::filesystem::path prepare_folder(const std::filesystem::path& prefix, bool overwrite) {
  if (std::filesystem::exists(with_suffix(prefix, ".idx")) && !overwrite) {
    throw UserError(text("token shard ", prefix.string(),
                         " is already there; choose another --out, or give --overwrite"));
  }
  const std::filesystem::path folder = prefix.parent_path();
  if (folder.empty()) return {};
  std::error_code failure;
  const bool is_made = std::filesystem::create_directories(folder, failure);
  if (failure) throw UserError(text("cannot make ", folder.string(), ": ", failure.message()));
  return is_made ? folder : std::filesystem::path();
}

}  // namespace

PackedShard pack_documents(const DocumentSource& source, const std::filesystem::path& prefix,
                           const PackShardOptions& options) {
  LONGSPAN_CHECK(options.vocabulary_size >= 1, "vocabulary_size ", options.vocabulary_size);
  const std::vector<int64_t> lengths = document_lengths(source);
  const int64_t total_tokens = std::accumulate(lengths.begin(), lengths.end(), int64_t{0});
  if (total_tokens == 0) {
    throw UserError(text("no documents to pack: all ", lengths.size(), " are empty (",
                         source.name(0), lengths.size() > 1 ? ", ...)" : ")"));
  }
  PackedShard packed;
  packed.made_folder = prepare_folder(prefix, options.overwrite);
  MegatronWriter shard(prefix, options.vocabulary_size);
  SidecarWriter sidecars(prefix);
  for (size_t idx = 0; idx < lengths.size(); ++idx) {
    const auto document = static_cast<int64_t>(idx);
    if (lengths[idx] == 0) {
      ++packed.documents_empty;
      continue;
    }
    const std::string name = source.name(document);
    for (int64_t begin = 0; begin < lengths[idx]; begin += kReadTokens) {
      const Range range{begin, std::min(begin + kReadTokens, lengths[idx])};
      const DocumentContent part = source.read(document, range, kAsStored);
      check_vocabulary(part.tokens, begin, name, options.vocabulary_size);
      shard.append(part.tokens);
      sidecars.append_weights(part.weights, range.size());
      packed.tokens += range.size();
      if (options.progress) options.progress(packed.tokens, total_tokens);
    }
    shard.end_document();
    sidecars.end_document(name);
    ++packed.documents;
  }
  shard.seal();
  sidecars.seal(shard.bin_bytes());
  std::filesystem::remove(with_suffix(prefix, ".idx"));
  sidecars.publish();
  shard.publish();
  packed.has_weights = sidecars.has_weights();
  return packed;
}

}  // namespace longspan
