// Documents as the rest of longspan sees them: numbered, of known length, read on demand as token
// ids with loss weights.
//
//   const auto source = open_documents({"docs/*.txt"}, options);        // open_documents.h
//   DocumentContent page = source->read(7, {0, source->length(7)}, /*epoch=*/0);
//
// The weight of a token is the weight of *predicting that token* from those before it (materialize
// in micro_batch.h moves it to the position that predicts). An epoch number is part of a read
// because a genome may be read from either strand, chosen anew each epoch; other sources ignore it.
//
// Sources are immutable after construction: any number of threads may read. Files must not change
// while they are open; fingerprints let a resumed run find out whether they did in between.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "base/range.h"

namespace longspan {

struct DocumentContent {
  std::vector<int32_t> tokens;
  std::vector<float> weights;  // one for each token, or empty: all 1
};

// What tells a file from another: its size and a hash of samples of its content (the whole of files
// up to 1 MiB; of larger ones both ends and 62 evenly spaced blocks). Not the time of modification,
// which a copy to another machine changes.
struct FileFingerprint {
  std::string path;
  int64_t bytes = 0;
  uint64_t sample_hash = 0;

  bool operator==(const FileFingerprint&) const = default;
};

FileFingerprint fingerprint_file(const std::filesystem::path& path);

// How a read of a document relates to the document as it stands in its file: position p of the read
// is position forward_position(orientation, p) of the file's document.
struct Orientation {
  bool is_reversed = false;    // read from the other strand: reversed, each base complemented
  int64_t rotation = 0;        // where in a circular record the read starts
  int64_t turning_length = 0;  // tokens that are turned: all but an end-of-document token
};

int64_t forward_position(const Orientation& orientation, int64_t position);

// Instead of an epoch: the document as it stands in its file, forward and from its first token.
// Evaluation and packing read this way.
inline constexpr int64_t kAsStored = -1;

class DocumentSource {
 public:
  virtual ~DocumentSource() = default;

  virtual int64_t count() const = 0;
  // Tokens of a document, the same in every epoch; may be 0.
  virtual int64_t length(int64_t document) const = 0;
  // For people: reports and errors. Unique within one source where its files are sane.
  virtual std::string name(int64_t document) const = 0;
  virtual DocumentContent read(int64_t document, const Range& range, int64_t epoch) const = 0;
  virtual Orientation orientation(int64_t document, int64_t epoch) const;
  // No token id is this large or larger, as far as is known without reading all of them.
  virtual int64_t vocabulary_bound() const = 0;
  virtual std::vector<FileFingerprint> fingerprints() const = 0;
  // What was left out or read as something else, counted, one sentence each; often empty.
  virtual std::vector<std::string> notes() const { return {}; }
};

std::vector<int64_t> document_lengths(const DocumentSource& source);

// One number for all files of a source and their order.
uint64_t combined_fingerprint(const std::vector<FileFingerprint>& fingerprints);

// UserError if a token id of any document is `vocabulary_size` or larger, naming document and
// position. Reads every document, unless the source knows a smaller bound.
void check_vocabulary(const DocumentSource& source, int64_t vocabulary_size);
// The same for tokens already read; `first_position` is where in the document they start.
void check_vocabulary(const std::vector<int32_t>& tokens, int64_t first_position,
                      const std::string& document_name, int64_t vocabulary_size);

}  // namespace longspan
