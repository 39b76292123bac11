// Plain text files, one document each.
//
//   TextSource pages({"a.pod", "b.pod"}, make_tokenizer("byte"));
//
// A document is called by its path. Files are opened when they are read, so any number may be
// listed; with the byte tokenizer a length is the file's size, and on opening only the first 4 KiB
// are looked at: a NUL there is what no text has, so such files are counted in a note. They are
// taken as they are, since bytes of anything can be trained on. A file whose size changed since
// then is a UserError. Immutable: any number of threads may read.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "data/document_source.h"
#include "data/tokenizer.h"

namespace longspan {

class TextSource : public DocumentSource {
 public:
  TextSource(std::vector<std::filesystem::path> paths, const Tokenizer& tokenizer);

  int64_t count() const override { return static_cast<int64_t>(files_.size()); }
  int64_t length(int64_t document) const override { return at(document).tokens; }
  std::string name(int64_t document) const override { return at(document).path.string(); }
  DocumentContent read(int64_t document, const Range& range, int64_t epoch) const override;
  int64_t vocabulary_bound() const override { return tokenizer_.vocabulary_size(); }
  std::vector<FileFingerprint> fingerprints() const override;
  std::vector<std::string> notes() const override;

 private:
  struct File {
    std::filesystem::path path;
    int64_t bytes = 0;
    int64_t tokens = 0;
  };

  const File& at(int64_t document) const;

  std::vector<File> files_;
  Tokenizer tokenizer_;
  int64_t binary_files_ = 0;
  std::string first_binary_;
};

}  // namespace longspan
