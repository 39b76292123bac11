#include "data/leakage.h"

#include <algorithm>
#include <bit>
#include <iomanip>
#include <nlohmann/json.hpp>
#include <sstream>
#include <utility>

#include "base/check.h"
#include "data/tokenizer.h"

namespace longspan {
namespace {

constexpr int64_t kReadTokens = int64_t{1} << 22;
constexpr size_t kDocumentsShown = 5;

// Two bits a base: 24 bases are 48 bits.
using Kmer = uint64_t;
constexpr Kmer kKmerMask = (Kmer{1} << (2 * kLeakageBases)) - 1;

// Slides over the bases of one document.
class KmerWindow {
 public:
  // The window that ends with this token; false if there is none without N.
  bool push(int32_t token) {
    if (token < kBaseA || token > kBaseT) {
      length_ = 0;
      return false;
    }
    const auto base = static_cast<Kmer>(token);
    forward_ = ((forward_ << 2) | base) & kKmerMask;
    // A 0 and T 3, C 1 and G 2 pair.
    reverse_ = (reverse_ >> 2) | ((3 - base) << (2 * (kLeakageBases - 1)));
    if (length_ < kLeakageBases) ++length_;
    return length_ == kLeakageBases;
  }
  // The same for a window and its reverse complement.
  Kmer canonical() const { return std::min(forward_, reverse_); }

 private:
  Kmer forward_ = 0;
  Kmer reverse_ = 0;
  int length_ = 0;
};

uint64_t scramble(Kmer kmer) {
  uint64_t bits = kmer * 0x9e3779b97f4a7c15u;
  bits ^= bits >> 32;
  bits *= 0xd6e8feb86659fd93u;
  return bits ^ (bits >> 32);
}

// A set of k-mers, each with a mark. Open addressing; half full with what is expected.
class MarkedKmers {
 public:
  explicit MarkedKmers(int64_t expected)
      : slots_(std::bit_ceil(static_cast<uint64_t>(std::max<int64_t>(2 * expected, 4))), kEmpty) {}

  void insert(Kmer kmer) {
    uint64_t& slot = find(kmer);
    if (slot != kEmpty) return;
    slot = kmer << 1;
    ++size_;
    if (4 * size_ > 3 * slots_.size()) grow();  // passes are equal on average only
  }
  void mark(Kmer kmer) {
    uint64_t& slot = find(kmer);
    if (slot != kEmpty) slot |= 1;
  }
  bool is_marked(Kmer kmer) { return (find(kmer) & 1) != 0; }

 private:
  static constexpr uint64_t kEmpty = ~uint64_t{1};  // no k-mer has so many bits

  uint64_t& find(Kmer kmer) {
    const uint64_t mask = slots_.size() - 1;
    uint64_t at = scramble(kmer) & mask;
    while (slots_[at] != kEmpty && slots_[at] >> 1 != kmer) at = (at + 1) & mask;
    return slots_[at];
  }

  void grow() {
    std::vector<uint64_t> old(2 * slots_.size(), kEmpty);
    std::swap(old, slots_);
    for (const uint64_t slot : old) {
      if (slot != kEmpty) find(slot >> 1) = slot;
    }
  }

  std::vector<uint64_t> slots_;
  uint64_t size_ = 0;
};

// Measures in passes; each looks at the k-mers whose hash falls to it.
class LeakageMeter {
 public:
  LeakageMeter(const DocumentSource& train, const DocumentSource& evaluation,
               const LeakageOptions& options)
      : train_(train), evaluation_(evaluation), options_(options) {
    LONGSPAN_CHECK(options.kmers_at_once > 0, "k-mers at once ", options.kmers_at_once);
    const int64_t windows_bound = total_tokens(evaluation);
    report_.passes =
        std::max<int64_t>(1, (windows_bound + options.kmers_at_once - 1) / options.kmers_at_once);
    capacity_ = std::min(windows_bound, options.kmers_at_once);
    tokens_to_read_ = report_.passes * (2 * windows_bound + total_tokens(train));
    for (int64_t document = 0; document < evaluation.count(); ++document) {
      report_.documents.push_back({{}, evaluation.name(document)});
    }
  }

  LeakageReport run() {
    for (pass_ = 0; pass_ < report_.passes; ++pass_) run_pass();
    for (const DocumentLeakage& document : report_.documents) {
      report_.total.windows += document.windows;
      report_.total.found += document.found;
    }
    report_.training_windows /= report_.passes;
    return std::move(report_);
  }

 private:
  static int64_t total_tokens(const DocumentSource& source) {
    int64_t tokens = 0;
    for (const int64_t length : document_lengths(source)) tokens += length;
    return tokens;
  }

  void run_pass() {
    MarkedKmers kmers(capacity_);
    const auto is_of_pass = [&](Kmer kmer) {
      return static_cast<int64_t>(scramble(kmer) >> 40) % report_.passes == pass_;
    };
    for_each_window(evaluation_, [&](int64_t, Kmer kmer) {
      if (is_of_pass(kmer)) kmers.insert(kmer);
    });
    for_each_window(train_, [&](int64_t, Kmer kmer) {
      ++report_.training_windows;
      if (is_of_pass(kmer)) kmers.mark(kmer);
    });
    for_each_window(evaluation_, [&](int64_t document, Kmer kmer) {
      if (!is_of_pass(kmer)) return;
      DocumentLeakage& counts = report_.documents[static_cast<size_t>(document)];
      ++counts.windows;
      counts.found += kmers.is_marked(kmer);
    });
  }

  template <typename Visit>
  void for_each_window(const DocumentSource& source, const Visit& visit) {
    for (int64_t document = 0; document < source.count(); ++document) {
      const int64_t length = source.length(document);
      KmerWindow window;
      for (int64_t begin = 0; begin < length; begin += kReadTokens) {
        const Range range{begin, std::min(begin + kReadTokens, length)};
        for (const int32_t token : source.read(document, range, kAsStored).tokens) {
          if (window.push(token)) visit(document, window.canonical());
        }
        tokens_read_ += range.size();
        if (options_.progress) options_.progress(tokens_read_, tokens_to_read_);
      }
    }
  }

  const DocumentSource& train_;
  const DocumentSource& evaluation_;
  const LeakageOptions& options_;
  LeakageReport report_;
  int64_t capacity_ = 0;
  int64_t pass_ = 0;
  int64_t tokens_read_ = 0;
  int64_t tokens_to_read_ = 0;
};

}  // namespace

LeakageReport measure_leakage(const DocumentSource& train, const DocumentSource& evaluation,
                              const LeakageOptions& options) {
  return LeakageMeter(train, evaluation, options).run();
}

std::string format_leakage(const LeakageReport& report) {
  std::ostringstream out;
  out << std::fixed << std::setprecision(2);
  out << "leakage            " << report.total.found_percent() << " % of " << report.total.windows
      << " held-out " << kLeakageBases << "-mers are in the training data, on either strand ("
      << report.total.found << "; " << report.training_windows << " " << kLeakageBases
      << "-mers there)\n";
  std::vector<const DocumentLeakage*> worst;
  for (const DocumentLeakage& document : report.documents) {
    if (document.found > 0) worst.push_back(&document);
  }
  std::stable_sort(worst.begin(), worst.end(), [](const auto* a, const auto* b) {
    return a->found_percent() > b->found_percent();
  });
  if (worst.size() > kDocumentsShown) worst.resize(kDocumentsShown);
  for (const DocumentLeakage* document : worst) {
    out << "                   " << document->found_percent() << " % of " << document->windows
        << "  " << document->name << "\n";
  }
  return out.str();
}

Json leakage_json(const LeakageReport& report) {
  const auto count_json = [](const LeakageCount& count) {
    Json json;
    json["windows"] = count.windows;
    json["found"] = count.found;
    json["found_percent"] = count.found_percent();
    return json;
  };
  Json json = count_json(report.total);
  json["bases"] = kLeakageBases;
  json["training_windows"] = report.training_windows;
  json["documents"] = Json::array();
  for (const DocumentLeakage& document : report.documents) {
    Json entry = count_json(document);
    entry["name"] = document.name;
    json["documents"].push_back(std::move(entry));
  }
  return json;
}

}  // namespace longspan
