// A file of JSON objects, one document a line.
//
//   {"text": "..."}                                            tokenized here
//   {"input_ids": [5, 7, 9], "loss_mask": [0, 1, 1]}           token ids as they are
//   {"input_ids": [5, 7, 9], "labels": [-100, 7, 9]}           the same, as Hugging Face writes it
//
// `loss_mask` holds the weight of predicting each token: numbers >= 0, or booleans. `labels` are
// not shifted: each equals its token or is -100 (weight 0). `position_ids`, if there, must be 0, 1,
// 2 ...: positions restart at each document. "id" or "name" (a string) names the document, else
// file and line do. Other keys are not read. Blank lines are skipped. Errors name file and line.
//
// Without a tokenizer only lines of token ids can be read. Opening reads the file once and keeps
// where each line starts; lines are parsed again on demand. Large corpora open faster as token
// shards (`longspan data pack`). Immutable: any number of threads.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "data/document_source.h"
#include "data/tokenizer.h"
#include "formats/mapped_file.h"

namespace longspan {

struct JsonlDocument {
  DocumentContent content;
  std::string name;  // empty if the line gives none
};

// `where` ("file:line") names the line in errors.
JsonlDocument parse_jsonl_line(std::string_view line, const std::optional<Tokenizer>& tokenizer,
                               const std::string& where);

struct JsonlLine {
  Range bytes;         // of the line in the file
  int64_t number = 0;  // counted from 1
  int64_t tokens = 0;
};

struct JsonlIndex {
  std::vector<JsonlLine> lines;  // those that are not blank
  int64_t vocabulary_bound = 0;  // no token id is this large
};

// Parses each line once.
JsonlIndex scan_jsonl(std::string_view content, const std::optional<Tokenizer>& tokenizer,
                      const std::string& origin);

class JsonlSource : public DocumentSource {
 public:
  JsonlSource(const std::filesystem::path& path, const std::optional<Tokenizer>& tokenizer);

  int64_t count() const override { return static_cast<int64_t>(index_.lines.size()); }
  int64_t length(int64_t document) const override { return at(document).tokens; }
  std::string name(int64_t document) const override;
  DocumentContent read(int64_t document, const Range& range, int64_t epoch) const override;
  int64_t vocabulary_bound() const override { return index_.vocabulary_bound; }
  std::vector<FileFingerprint> fingerprints() const override;

 private:
  const JsonlLine& at(int64_t document) const;
  JsonlDocument parse(int64_t document) const;

  MappedFile file_;
  std::optional<Tokenizer> tokenizer_;
  JsonlIndex index_;
};

}  // namespace longspan
