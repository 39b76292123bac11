#include "data/text_source.h"

#include "base/check.h"
#include "data/memory_source.h"
#include "formats/mapped_file.h"

namespace longspan {
namespace {

constexpr size_t kLookedAtBytes = 4096;

}  // namespace

TextSource::TextSource(std::vector<std::filesystem::path> paths, const Tokenizer& tokenizer)
    : tokenizer_(tokenizer) {
  files_.reserve(paths.size());
  for (std::filesystem::path& path : paths) {
    const MappedFile file(path);
    const int64_t tokens = tokenizer_.encoded_length(file.characters(), path.string());
    if (file.characters().substr(0, kLookedAtBytes).find('\0') != std::string_view::npos) {
      if (binary_files_++ == 0) first_binary_ = path.string();
    }
    files_.push_back({std::move(path), file.size(), tokens});
  }
}

const TextSource::File& TextSource::at(int64_t document) const {
  LONGSPAN_CHECK(document >= 0 && document < count(), "document ", document, " of ", count());
  return files_[static_cast<size_t>(document)];
}

DocumentContent TextSource::read(int64_t document, const Range& range, int64_t) const {
  const File& listed = at(document);
  const MappedFile file(listed.path);
  if (file.size() != listed.bytes) {
    throw UserError(text(listed.path.string(), ": had ", listed.bytes, " bytes, now has ",
                         file.size(), "; files must not change during a run"));
  }
  return slice({tokenizer_.encode(file.characters(), listed.path.string()), {}}, range);
}

std::vector<FileFingerprint> TextSource::fingerprints() const {
  std::vector<FileFingerprint> fingerprints;
  for (const File& file : files_) fingerprints.push_back(fingerprint_file(file.path));
  return fingerprints;
}

std::vector<std::string> TextSource::notes() const {
  if (binary_files_ == 0) return {};
  return {text(binary_files_, " of ", count(), " text files hold NUL bytes and seem to be binary (",
               first_binary_, binary_files_ > 1 ? ", ..." : "",
               "); their bytes are tokens like any")};
}

}  // namespace longspan
