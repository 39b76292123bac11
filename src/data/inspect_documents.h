// What is inside a set of documents: how many, how long, how unequal, and how well they pack.
//
//   const DocumentReport report = inspect_documents(*source, 65536);
//   std::cout << format_report(report);          // or report_json(report)
//
// The figures say what balancing has to deal with: attention work grows with the square of a
// length, so a few long documents hold most of it. Work is counted in causal pairs, s(s+1)/2 of a
// document of s tokens. Empty documents are counted apart and are in no other figure.
//
// Reads lengths only (and the name of the longest). Pure functions; any thread.
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "data/document_source.h"
#include "formats/json.h"

namespace longspan {

struct DocumentReport {
  int64_t documents = 0;
  int64_t documents_empty = 0;
  int64_t tokens = 0;
  // Length at each percentile; nearest rank, so each is the length of some document.
  std::vector<std::pair<int, int64_t>> length_percentiles;
  int64_t longest_tokens = 0;
  std::string longest_name;
  double sum_of_squares = 0;          // of lengths
  double mean_document_tokens = 0;    // sum s / n: the document that a random document is
  double token_weighted_tokens = 0;   // sum s^2 / sum s: the document that a random token is in
  double longest_percent_tokens = 0;  // share of tokens in the longest 1 % of documents, in percent
  double longest_percent_work = 0;    // share of attention work there, in percent
  double longest_document_work = 0;   // share of attention work in the longest one, in percent
  // Packing into micro-batches; 0 where none was asked for or the longest does not fit.
  int64_t micro_batch_tokens = 0;
  int64_t micro_batches = 0;
  double fill_percent = 0;
  int64_t documents_overlong = 0;
  int64_t tokens_overlong = 0;
  std::vector<std::string> notes;  // of the source
};

// `micro_batch_tokens` 0: no packing. Overlong documents are left out of the fill and counted.
DocumentReport inspect_documents(const DocumentSource& source, int64_t micro_batch_tokens);

std::string format_report(const DocumentReport& report);
Json report_json(const DocumentReport& report);

}  // namespace longspan
