// Opens documents by path or shell glob, each file as what its suffix says it is.
//
//   OpenOptions options{.tokenizer = make_tokenizer("byte")};
//   const auto source = open_documents({"docs/*.txt", "more.jsonl", "shards/x"}, options);
//
// Suffixes: .jsonl; .fa .fasta .fna, also with .gz or .bgz; .idx .bin, or the path without suffix
// (Megatron shards, with their sidecars); .txt .md .pod and others of plain text, one document a
// file. A file with another suffix is an error unless `format` says what it is; no document at all
// is an error too. What a pattern may be: expand_patterns.h.
//
// `hold_out` names parts of FASTA files; `fasta.split` says whether the rest or the held-out part
// is opened. With the same options for training and evaluation no base is in both.
//
// Throws UserError. A pure function of the file system; any thread.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "data/document_source.h"
#include "data/fasta_source.h"
#include "data/tokenizer.h"

namespace longspan {

enum class DocumentFormat { kAuto, kText, kJsonl, kFasta, kMegatron };

// "auto", "text", "jsonl", "fasta" or "megatron"; UserError otherwise.
DocumentFormat parse_document_format(const std::string& word);

struct OpenOptions {
  std::optional<Tokenizer> tokenizer = {};  // none: only files that hold token ids can be opened
  DocumentFormat format = DocumentFormat::kAuto;
  uint64_t seed = 0;  // of strands and rotations

  FastaOptions fasta = {};
  std::vector<std::string> hold_out = {};  // FASTA records by name or glob, and *.bed files
  bool reverse_complement = false;         // needs tokens that are bases: FASTA, or packed from it
  std::vector<std::string> circular = {};  // names or globs of circular records
  // Whose values these two are, as errors say it: "data.fasta.hold_out (run.toml:3)".
  std::string hold_out_named_by = "hold-out";
  std::string circular_named_by = "circular";
};

std::unique_ptr<DocumentSource> open_documents(const std::vector<std::string>& patterns,
                                               const OpenOptions& options);

}  // namespace longspan
