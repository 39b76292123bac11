// How much of the evaluation is in the training data: the share of its 24-mers (24 bases in a row)
// that occur there, on either strand. The first question that a result on genomes is asked.
//
//   const LeakageReport report = measure_leakage(*train, *held_out, {});
//   std::cout << format_leakage(report);        // or leakage_json(report)
//
// Every window of 24 bases of every evaluation document counts once; windows with an N, and windows
// over the end of a document, do not exist. A window is found if it or its reverse complement is a
// window of any training document. The figures are exact. Documents are read as they stand in their
// files, and must hold ids of the nucleotide tokenizer.
//
// Memory: a table of at most 16 bytes for each of `kmers_at_once`, whatever the size of the data;
// evaluation documents with more windows take several passes over both sides. Reads sources only;
// any thread.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "data/document_source.h"
#include "formats/json.h"

namespace longspan {

inline constexpr int kLeakageBases = 24;

struct LeakageCount {
  int64_t windows = 0;  // of 24 bases without N
  int64_t found = 0;    // of these, in training data

  double found_percent() const {
    return windows == 0 ? 0 : 100 * static_cast<double>(found) / static_cast<double>(windows);
  }
};

struct DocumentLeakage : LeakageCount {
  std::string name;
};

struct LeakageReport {
  LeakageCount total;
  std::vector<DocumentLeakage> documents;  // in the order of the evaluation source
  int64_t training_windows = 0;
  int64_t passes = 0;
};

struct LeakageOptions {
  int64_t kmers_at_once = int64_t{1} << 26;  // 1 GiB
  // Called now and then with tokens read and to be read, of both sources and all passes.
  std::function<void(int64_t done_tokens, int64_t total_tokens)> progress = {};
};

LeakageReport measure_leakage(const DocumentSource& train, const DocumentSource& evaluation,
                              const LeakageOptions& options);

std::string format_leakage(const LeakageReport& report);
Json leakage_json(const LeakageReport& report);

}  // namespace longspan
