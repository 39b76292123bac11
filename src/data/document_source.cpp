#include "data/document_source.h"

#include <algorithm>
#include <string_view>

#include "base/check.h"
#include "base/random.h"
#include "formats/mapped_file.h"

namespace longspan {
namespace {

constexpr int64_t kWholeHashBytes = int64_t{1} << 20;
constexpr int64_t kSampleBytes = 4096;
constexpr int64_t kSamples = 64;
constexpr int64_t kReadTokens = int64_t{1} << 22;

}  // namespace

FileFingerprint fingerprint_file(const std::filesystem::path& path) {
  const MappedFile file(path);
  const std::string_view content = file.characters();
  FileFingerprint fingerprint{path.string(), file.size(), hash_bytes("")};
  if (file.size() <= kWholeHashBytes) {
    fingerprint.sample_hash = hash_bytes(content);
    return fingerprint;
  }
  const int64_t last_begin = file.size() - kSampleBytes;
  for (int64_t sample = 0; sample < kSamples; ++sample) {
    // Divided before multiplied: sizes near 2^63 / 64 would overflow otherwise.
    const int64_t begin =
        sample + 1 == kSamples ? last_begin : last_begin / (kSamples - 1) * sample;
    fingerprint.sample_hash = hash_bytes(content.substr(static_cast<size_t>(begin), kSampleBytes),
                                         fingerprint.sample_hash);
  }
  return fingerprint;
}

int64_t forward_position(const Orientation& orientation, int64_t position) {
  const int64_t length = orientation.turning_length;
  if (position >= length) return position;  // the end-of-document token
  const int64_t along = orientation.is_reversed ? length - 1 - position : position;
  return (orientation.rotation + along) % length;
}

Orientation DocumentSource::orientation(int64_t document, int64_t) const {
  return {false, 0, length(document)};
}

std::vector<int64_t> document_lengths(const DocumentSource& source) {
  std::vector<int64_t> lengths(static_cast<size_t>(source.count()));
  for (size_t idx = 0; idx < lengths.size(); ++idx) {
    lengths[idx] = source.length(static_cast<int64_t>(idx));
  }
  return lengths;
}

uint64_t combined_fingerprint(const std::vector<FileFingerprint>& fingerprints) {
  uint64_t hash = hash_bytes("");
  for (const FileFingerprint& file : fingerprints) {
    hash = hash_bytes(text(file.bytes, ' ', file.sample_hash, '\n'), hash);
  }
  return hash;
}

void check_vocabulary(const std::vector<int32_t>& tokens, int64_t first_position,
                      const std::string& document_name, int64_t vocabulary_size) {
  const auto found = std::find_if(tokens.begin(), tokens.end(),
                                  [&](int32_t id) { return id < 0 || id >= vocabulary_size; });
  if (found == tokens.end()) return;
  throw UserError(text("document ", document_name, ", position ",
                       first_position + (found - tokens.begin()), ": token id ", *found,
                       " is outside the model's vocabulary of ", vocabulary_size,
                       "; the documents were made with another tokenizer, or vocab_size of the "
                       "model is too small"));
}

void check_vocabulary(const DocumentSource& source, int64_t vocabulary_size) {
  if (source.vocabulary_bound() <= vocabulary_size) return;
  for (int64_t document = 0; document < source.count(); ++document) {
    const int64_t length = source.length(document);
    for (int64_t begin = 0; begin < length; begin += kReadTokens) {
      const Range range{begin, std::min(begin + kReadTokens, length)};
      check_vocabulary(source.read(document, range, kAsStored).tokens, begin, source.name(document),
                       vocabulary_size);
    }
  }
}

}  // namespace longspan
