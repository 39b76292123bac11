#include "data/fasta_index.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <utility>

#include "base/error.h"
#include "formats/gzip_reader.h"
#include "formats/json.h"
#include "formats/mapped_file.h"

namespace longspan {
namespace {

constexpr std::string_view kSpace = " \t\r";
constexpr size_t kColumns = 5;

// Measures the lines of a FASTA file that the parser finds to be one.
class LineMeter {
 public:
  explicit LineMeter(std::string origin) : origin_(std::move(origin)) {}

  void feed(std::string_view piece) {
    for (const char character : piece) {
      if (character == '\n') {
        end_line();
      } else {
        line_ += character;
      }
    }
  }

  std::vector<FastaIndexEntry> finish() {
    // As samtools counts: a last line without a line end is measured as if it had one.
    if (!line_.empty()) end_line();
    return std::exchange(entries_, {});
  }

 private:
  void end_line() {
    ++line_number_;
    offset_ += static_cast<int64_t>(line_.size()) + 1;
    if (line_.starts_with('>')) {
      begin_record();
    } else if (!entries_.empty()) {
      add_sequence();
    }
    line_.clear();
  }

  void begin_record() {
    entries_.push_back(
        {.name = line_.substr(1, line_.find_first_of(kSpace) - 1), .offset = offset_});
    is_ended_ = false;
  }

  void add_sequence() {
    const auto bases = static_cast<int64_t>(line_.find_last_not_of(kSpace) + 1);
    const auto bytes = static_cast<int64_t>(line_.size()) + 1;
    FastaIndexEntry& entry = entries_.back();
    if (bases == 0) {
      is_ended_ = true;  // blank lines may only follow a record
      return;
    }
    const bool is_first = entry.bases == 0;
    if (is_ended_ || (!is_first && bases > entry.line_bases)) {
      throw UserError(text(origin_, ":", line_number_, ": the lines of record '", entry.name,
                           "' are not equally long, so no index can describe it; wrap the "
                           "sequence anew"));
    }
    if (is_first) {
      entry.line_bases = bases;
      entry.line_bytes = bytes;
    }
    entry.bases += bases;
    is_ended_ = bases != entry.line_bases || bytes != entry.line_bytes;
  }

  std::string origin_;
  std::vector<FastaIndexEntry> entries_;
  std::string line_;
  int64_t line_number_ = 0;
  int64_t offset_ = 0;     // of the line after this one
  bool is_ended_ = false;  // no further line may belong to the record
};

int64_t parse_column(std::string_view column, const std::string& where) {
  int64_t value = 0;
  const auto [end, error] = std::from_chars(column.data(), column.data() + column.size(), value);
  if (error != std::errc() || end != column.data() + column.size() || value < 0) {
    throw UserError(text(where, ": '", column, "' is not a count"));
  }
  return value;
}

FastaIndexEntry parse_line(std::string_view line, const std::string& where) {
  std::array<std::string_view, kColumns> columns;
  size_t count = 0;
  for (size_t begin = 0; begin <= line.size(); ++count) {
    const size_t end = std::min(line.find('\t', begin), line.size());
    if (count < kColumns) columns[count] = line.substr(begin, end - begin);
    begin = end + 1;
  }
  if (count != kColumns || columns[0].empty()) {
    throw UserError(text(where,
                         ": a line of a FASTA index has a name and four numbers, with tabs "
                         "between them"));
  }
  return {std::string(columns[0]), parse_column(columns[1], where), parse_column(columns[2], where),
          parse_column(columns[3], where), parse_column(columns[4], where)};
}

}  // namespace

std::filesystem::path fasta_index_path(const std::filesystem::path& fasta) {
  std::filesystem::path path = fasta;
  path += ".fai";
  return path;
}

std::vector<FastaIndexEntry> index_fasta(std::string_view bytes, const std::string& origin) {
  GzipReader reader(bytes, origin);
  if (reader.is_compressed() && !reader.is_bgzip()) {
    throw UserError(text(origin,
                         ": is plain gzip, into which an index cannot point; compress it with "
                         "bgzip instead"));
  }
  FastaParser parser(origin);
  LineMeter meter(origin);
  while (!reader.next().empty()) {
    parser.feed(reader.piece());
    meter.feed(reader.piece());
  }
  parser.finish();
  return meter.finish();
}

std::vector<FastaIndexEntry> index_fasta(const std::filesystem::path& fasta) {
  const MappedFile file(fasta);
  return index_fasta(file.characters(), fasta.string());
}

std::string fasta_index_text(const std::vector<FastaIndexEntry>& entries) {
  std::string lines;
  for (const FastaIndexEntry& entry : entries) {
    lines += text(entry.name, '\t', entry.bases, '\t', entry.offset, '\t', entry.line_bases, '\t',
                  entry.line_bytes, '\n');
  }
  return lines;
}

std::vector<FastaIndexEntry> parse_fasta_index(std::string_view content,
                                               const std::string& origin) {
  std::vector<FastaIndexEntry> entries;
  int64_t line_number = 0;
  while (!content.empty()) {
    const size_t end = std::min(content.find('\n'), content.size());
    std::string_view line = content.substr(0, end);
    content.remove_prefix(std::min(end + 1, content.size()));
    if (line.ends_with('\r')) line.remove_suffix(1);
    ++line_number;
    entries.push_back(parse_line(line, text(origin, ":", line_number)));
  }
  return entries;
}

void check_fasta_index(const std::filesystem::path& fasta,
                       const std::vector<FastaRecord>& records) {
  const std::filesystem::path path = fasta_index_path(fasta);
  if (!std::filesystem::exists(path)) return;
  const auto entries = parse_fasta_index(read_text(path), path.string());
  const auto fail = [&](size_t line, const std::string& what) {
    throw UserError(text(path.string(), ":", line, ": ", what, "; the index is not of ",
                         fasta.string(), " as it is now: check which of the two is right, and ",
                         "write the index anew with: longspan data index --overwrite ",
                         fasta.string()));
  };
  for (size_t idx = 0; idx < std::min(entries.size(), records.size()); ++idx) {
    const FastaIndexEntry& entry = entries[idx];
    const FastaRecord& record = records[idx];
    if (entry.name == record.name && entry.bases == record.bases.size()) continue;
    fail(idx + 1, text("record '", entry.name, "' of ", entry.bases, " bases, in the file '",
                       record.name, "' of ", record.bases.size()));
  }
  if (entries.size() != records.size()) {
    fail(std::min(entries.size(), records.size()) + 1,
         text(entries.size(), " records, in the file ", records.size()));
  }
}

}  // namespace longspan
