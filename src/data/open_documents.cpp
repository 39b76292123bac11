#include "data/open_documents.h"

#include <algorithm>
#include <array>
#include <iterator>
#include <set>
#include <utility>

#include "base/error.h"
#include "base/random.h"
#include "data/combined_source.h"
#include "data/expand_patterns.h"
#include "data/jsonl_source.h"
#include "data/shard_source.h"
#include "data/strand_source.h"
#include "data/text_source.h"

namespace longspan {
namespace {

constexpr std::array kTextSuffixes = {".txt", ".md",  ".pod", ".rst", ".tex", ".html", ".htm",
                                      ".xml", ".org", ".py",  ".pl",  ".pm",  ".c",    ".h",
                                      ".cc",  ".cpp", ".hpp", ".cu",  ".rs",  ".go",   ".java",
                                      ".js",  ".ts",  ".sh",  ".sql", ".tcl"};
constexpr std::array kFastaSuffixes = {".fa", ".fasta", ".fna"};

template <size_t kCount>
bool is_one_of(const std::array<const char*, kCount>& suffixes, const std::string& suffix) {
  return std::find(suffixes.begin(), suffixes.end(), suffix) != suffixes.end();
}

DocumentFormat format_of(const std::filesystem::path& path, DocumentFormat wanted) {
  if (wanted != DocumentFormat::kAuto) return wanted;
  const std::string suffix = path.extension().string();
  if (is_shard_path(path)) return DocumentFormat::kMegatron;
  if (suffix == ".jsonl") return DocumentFormat::kJsonl;
  if (is_one_of(kTextSuffixes, suffix)) return DocumentFormat::kText;
  const bool is_compressed = suffix == ".gz" || suffix == ".bgz";
  const std::string inner = is_compressed ? path.stem().extension().string() : suffix;
  if (is_one_of(kFastaSuffixes, inner)) return DocumentFormat::kFasta;
  throw UserError(text(path.string(), ": the suffix '", suffix,
                       "' does not say what is inside; set data.format to \"text\" (one document a "
                       "file), \"jsonl\", \"fasta\" or \"megatron\" (token shards)"));
}

// Opens the files of one call, in order, and checks what concerns all of them.
class Opener {
 public:
  explicit Opener(const OpenOptions& options)
      : options_(options), hold_out_(options.hold_out, options.hold_out_named_by) {
    if (!hold_out_.empty() && options.fasta.split == Split::kAll) {
      throw UserError(
          "a hold-out is given, but not whether the held-out part or the rest is wanted");
    }
    for (const std::string& pattern : options.circular) unused_circular_.insert(pattern);
  }

  std::unique_ptr<DocumentSource> open(const std::vector<std::filesystem::path>& paths) {
    for (const std::filesystem::path& path : paths) add(path);
    flush_text();
    hold_out_.check_all_used();
    if (!unused_circular_.empty()) {
      throw UserError(text(options_.circular_named_by, ": '", *unused_circular_.begin(),
                           "' matches no document"));
    }
    return std::make_unique<CombinedSource>(std::move(sources_));
  }

 private:
  bool turns() const { return options_.reverse_complement || !options_.circular.empty(); }

  void add(const std::filesystem::path& path) {
    const DocumentFormat format = format_of(path, options_.format);
    if (format == DocumentFormat::kText) {
      text_paths_.push_back(path);
      return;
    }
    flush_text();
    if (format == DocumentFormat::kFasta) {
      add_fasta(path);
    } else if (format == DocumentFormat::kJsonl) {
      check_may_turn(path);
      add_turning(std::make_unique<JsonlSource>(path, options_.tokenizer));
    } else {
      add_turning(std::make_unique<ShardSource>(path));
    }
  }

  // Neighbouring text files share one source.
  void flush_text() {
    if (text_paths_.empty()) return;
    check_may_turn(text_paths_.front());
    const Tokenizer& tokenizer = need_tokenizer(text_paths_.front());
    add_turning(std::make_unique<TextSource>(std::exchange(text_paths_, {}), tokenizer));
  }

  void check_may_turn(const std::filesystem::path& path) const {
    const bool is_nucleotide =
        options_.tokenizer && options_.tokenizer->kind() == Tokenizer::Kind::kNucleotide;
    if (!turns() || is_nucleotide) return;
    throw UserError(text(path.string(),
                         ": bytes of text have no other strand and no circle; set "
                         "the tokenizer to \"nucleotide\", or leave out reverse_complement and "
                         "circular"));
  }

  const Tokenizer& need_tokenizer(const std::filesystem::path& who) const {
    if (options_.tokenizer) return *options_.tokenizer;
    throw UserError(text(who.string(),
                         ": needs a tokenizer; set data.tokenizer to \"byte\" or "
                         "\"nucleotide\""));
  }

  void add_fasta(const std::filesystem::path& path) {
    auto source =
        std::make_unique<FastaSource>(path, need_tokenizer(path), options_.fasta, hold_out_);
    // A record of the other split may be circular too, so names are looked for among all records.
    for (const FastaRecord& record : source->records()) matches_circular(record.name);
    std::vector<bool> is_circular;
    for (int64_t document = 0; document < source->count(); ++document) {
      // A part of a circle is a line.
      is_circular.push_back(matches_circular(source->record_name(document)) &&
                            source->is_whole_record(document));
    }
    add_turning(std::move(source), std::move(is_circular));
  }

  void add_turning(std::unique_ptr<DocumentSource> source) {
    std::vector<bool> is_circular;
    for (int64_t document = 0; !options_.circular.empty() && document < source->count();
         ++document) {
      is_circular.push_back(matches_circular(source->name(document)));
    }
    add_turning(std::move(source), std::move(is_circular));
  }

  void add_turning(std::unique_ptr<DocumentSource> source, std::vector<bool> is_circular) {
    if (turns()) {
      // Documents of two files must not share their choices.
      const uint64_t seed =
          RandomStream(options_.seed, "strands of a file", sources_.size()).next();
      source = std::make_unique<StrandSource>(
          std::move(source), need_tokenizer("reverse_complement or circular"),
          StrandOptions{.seed = seed, .reverse_complement = options_.reverse_complement},
          std::move(is_circular));
    }
    sources_.push_back(std::move(source));
  }

  bool matches_circular(const std::string& name) {
    bool is_match = false;
    for (const std::string& pattern : options_.circular) {
      if (!matches_glob(pattern, name)) continue;
      is_match = true;
      unused_circular_.erase(pattern);
    }
    return is_match;
  }

  const OpenOptions& options_;
  HoldOut hold_out_;
  std::set<std::string> unused_circular_;
  std::vector<std::filesystem::path> text_paths_;
  std::vector<std::unique_ptr<DocumentSource>> sources_;
};

[[noreturn]] void fail_without_documents(const std::vector<std::filesystem::path>& files,
                                         const OpenOptions& options) {
  constexpr size_t kFilesShown = 3;
  std::string message = "no documents in";
  for (size_t idx = 0; idx < std::min(files.size(), kFilesShown); ++idx) {
    std::error_code ignored;
    message += text(" ", files[idx].string(),
                    std::filesystem::file_size(files[idx], ignored) == 0 ? " (an empty file)" : "");
  }
  if (files.size() > kFilesShown) message += text(" and ", files.size() - kFilesShown, " others");
  if (options.hold_out.empty()) throw UserError(message + "; name files that hold some");
  const bool training = options.fasta.split == Split::kTrain;
  throw UserError(text(message, ": ", options.hold_out_named_by, " holds out ",
                       training ? "all" : "none", " of what they hold"));
}

}  // namespace

DocumentFormat parse_document_format(const std::string& word) {
  if (word == "auto") return DocumentFormat::kAuto;
  if (word == "text") return DocumentFormat::kText;
  if (word == "jsonl") return DocumentFormat::kJsonl;
  if (word == "fasta") return DocumentFormat::kFasta;
  if (word == "megatron") return DocumentFormat::kMegatron;
  throw UserError(text("format = \"", word,
                       "\"; it must be \"auto\", \"text\", \"jsonl\", \"fasta\" or \"megatron\""));
}

std::unique_ptr<DocumentSource> open_documents(const std::vector<std::string>& patterns,
                                               const OpenOptions& options) {
  const std::vector<std::filesystem::path> files = expand_patterns(patterns);
  auto source = Opener(options).open(files);
  if (source->count() == 0) fail_without_documents(files, options);
  return source;
}

}  // namespace longspan
