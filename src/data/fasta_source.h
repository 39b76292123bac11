// The documents of a FASTA file (plain, gzip or bgzip), one token a base.
//
//   HoldOut none;
//   FastaSource genome("genome.fa.gz", make_tokenizer("nucleotide"), FastaOptions{}, none);
//
// A record is a document, called by its name. It becomes several, called name:begin-end (0-based,
// half-open, as in BED), where a run of more than `max_n_run` N ends a document (the run itself
// is left out) and where a hold-out cuts it. Weights: `mask_n_weight` for predicting an N (0: the
// model sees it, but is not asked for it), `soft_mask_weight` for predicting a lower-case base,
// else 1. Tokens are upper case. The end-of-document token, if the tokenizer has one, ends each
// document. A .fai beside the file must be the file's (fasta_index.h).
//
// Everything is read when the source is made (half a byte a base stays in memory). The strand and
// the start of circular records are the business of strand_source.h. Immutable after that: any
// thread.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "data/document_source.h"
#include "data/fasta_parser.h"
#include "data/hold_out.h"
#include "data/tokenizer.h"

namespace longspan {

struct FastaOptions {
  int64_t max_n_run = 0;  // a longer run of N ends the document; 0: no run does
  float mask_n_weight = 0;
  float soft_mask_weight = 1;
  Split split = Split::kAll;
};

class FastaSource : public DocumentSource {
 public:
  FastaSource(const std::filesystem::path& path, const Tokenizer& tokenizer,
              const FastaOptions& options, HoldOut& hold_out);

  int64_t count() const override { return static_cast<int64_t>(documents_.size()); }
  int64_t length(int64_t document) const override;
  std::string name(int64_t document) const override;
  DocumentContent read(int64_t document, const Range& range, int64_t epoch) const override;
  int64_t vocabulary_bound() const override { return tokenizer_.vocabulary_size(); }
  std::vector<FileFingerprint> fingerprints() const override;
  std::vector<std::string> notes() const override;

  // All of the file, those without a document here included.
  const std::vector<FastaRecord>& records() const { return content_.records; }
  // Whether a document is a whole record, and the record's name.
  bool is_whole_record(int64_t document) const;
  const std::string& record_name(int64_t document) const;

 private:
  struct Document {
    size_t record = 0;
    Range bases;  // in the record
  };

  void add_record(size_t record, HoldOut& hold_out);
  // Cuts a part of a record at its long runs of N.
  void add_part(size_t record, const Range& part);
  void add_document(size_t record, const Range& bases);
  const Document& at(int64_t document) const;
  float weight_of(const MaskedBase& base) const;

  std::filesystem::path path_;
  Tokenizer tokenizer_;
  FastaOptions options_;
  FastaContent content_;
  std::vector<Document> documents_;
  int64_t n_runs_ = 0;  // that ended a document
  int64_t n_run_bases_ = 0;
  int64_t other_split_bases_ = 0;
  int64_t empty_records_ = 0;
};

}  // namespace longspan
