#include "data/fasta_source.h"

#include <cmath>
#include <utility>

#include "base/check.h"
#include "data/fasta_index.h"
#include "formats/gzip_reader.h"
#include "formats/mapped_file.h"

namespace longspan {
namespace {

FastaContent read_fasta(const std::filesystem::path& path) {
  const MappedFile file(path);
  GzipReader reader(file.characters(), path.string());
  FastaParser parser(path.string());
  while (!reader.next().empty()) parser.feed(reader.piece());
  return parser.finish();
}

void check_options(const FastaOptions& options) {
  if (options.max_n_run < 0) {
    throw UserError(text("data.fasta.max_n_run is ", options.max_n_run, "; it must be at least 0"));
  }
  for (const float weight : {options.mask_n_weight, options.soft_mask_weight}) {
    if (!(weight >= 0) || !std::isfinite(weight)) {
      throw UserError(text("data.fasta: a loss weight is ", weight, "; it must be at least 0"));
    }
  }
}

}  // namespace

FastaSource::FastaSource(const std::filesystem::path& path, const Tokenizer& tokenizer,
                         const FastaOptions& options, HoldOut& hold_out)
    : path_(path), tokenizer_(tokenizer), options_(options) {
  check_options(options);
  content_ = read_fasta(path);
  check_fasta_index(path, content_.records);
  for (size_t record = 0; record < content_.records.size(); ++record) {
    add_record(record, hold_out);
  }
}

void FastaSource::add_record(size_t record, HoldOut& hold_out) {
  const int64_t length = content_.records[record].bases.size();
  empty_records_ += length == 0;
  std::vector<Range> parts = normalize({Range{0, length}});
  const std::vector<Range> held_out =
      hold_out.held_out_parts(content_.records[record].name, length);
  if (options_.split == Split::kTrain) parts = subtract(parts, held_out);
  if (options_.split == Split::kHeldOut) parts = intersect(parts, held_out);
  other_split_bases_ += length - total_size(parts);
  for (const Range& part : parts) add_part(record, part);
}

void FastaSource::add_part(size_t record, const Range& part) {
  const int64_t offset = content_.records[record].bases.begin;
  int64_t begin = part.begin;      // of the document at hand
  int64_t run_begin = part.begin;  // of the run of N that ends before `position`
  const auto end_run = [&](int64_t position) {
    const int64_t run = position - run_begin;
    if (options_.max_n_run == 0 || run <= options_.max_n_run) return;
    ++n_runs_;
    n_run_bases_ += run;
    add_document(record, {begin, run_begin});
    begin = position;
  };
  for (int64_t position = part.begin; position < part.end; ++position) {
    if (content_.store[offset + position].base == kBaseN) continue;
    end_run(position);
    run_begin = position + 1;
  }
  end_run(part.end);
  add_document(record, {begin, part.end});
}

void FastaSource::add_document(size_t record, const Range& bases) {
  if (!bases.empty()) documents_.push_back({record, bases});
}

const FastaSource::Document& FastaSource::at(int64_t document) const {
  LONGSPAN_CHECK(document >= 0 && document < count(), "document ", document, " of ", count());
  return documents_[static_cast<size_t>(document)];
}

int64_t FastaSource::length(int64_t document) const {
  return at(document).bases.size() + (tokenizer_.end_of_document() ? 1 : 0);
}

const std::string& FastaSource::record_name(int64_t document) const {
  return content_.records[at(document).record].name;
}

bool FastaSource::is_whole_record(int64_t document) const {
  return at(document).bases.size() == content_.records[at(document).record].bases.size();
}

std::string FastaSource::name(int64_t document) const {
  if (is_whole_record(document)) return record_name(document);
  const Range& bases = at(document).bases;
  return text(record_name(document), ':', bases.begin, '-', bases.end);
}

float FastaSource::weight_of(const MaskedBase& base) const {
  if (base.base == kBaseN) return options_.mask_n_weight;
  return base.is_soft_masked ? options_.soft_mask_weight : 1;
}

DocumentContent FastaSource::read(int64_t document, const Range& range, int64_t) const {
  const Document& part = at(document);
  LONGSPAN_CHECK(Range(0, length(document)).contains(range) && range.begin <= range.end, "part ",
                 range, " of ", length(document), " tokens");
  const int64_t offset = content_.records[part.record].bases.begin + part.bases.begin;
  DocumentContent read;
  read.tokens.reserve(static_cast<size_t>(range.size()));
  read.weights.reserve(static_cast<size_t>(range.size()));
  bool is_weighted = false;
  for (int64_t position = range.begin; position < range.end; ++position) {
    if (position == part.bases.size()) {
      read.tokens.push_back(*tokenizer_.end_of_document());
      read.weights.push_back(1);
      continue;
    }
    const MaskedBase base = content_.store[offset + position];
    read.tokens.push_back(tokenizer_.base_id(base.base));
    read.weights.push_back(weight_of(base));
    is_weighted = is_weighted || read.weights.back() != 1;
  }
  if (!is_weighted) read.weights.clear();
  return read;
}

std::vector<FileFingerprint> FastaSource::fingerprints() const {
  return {fingerprint_file(path_)};
}

std::vector<std::string> FastaSource::notes() const {
  std::vector<std::string> notes;
  const auto note = [&](int64_t counted, const std::string& sentence) {
    if (counted > 0) notes.push_back(text(path_.string(), ": ", sentence));
  };
  note(tokenizer_.kind() == Tokenizer::Kind::kByte,
       "bases read as the bytes of A C G T N, ids of text; the tokenizer \"nucleotide\" has an id "
       "for each base and 6 in all");
  note(content_.ambiguous_bases,
       text(content_.ambiguous_bases, " IUPAC codes other than A C G T U N read as N"));
  note(n_runs_, text(n_runs_, " runs of more than ", options_.max_n_run, " N (", n_run_bases_,
                     " bases) left out; documents end there"));
  note(other_split_bases_,
       text(other_split_bases_, " bases belong to ",
            options_.split == Split::kTrain ? "the held-out part" : "the training part"));
  note(empty_records_, text(empty_records_, " records without sequence left out"));
  return notes;
}

}  // namespace longspan
