// The index that stands beside a FASTA file: genome.fa.fai, as samtools writes and reads it.
//
// A line for each record, five columns with tabs between them: name, bases, offset of the first
// base, bases a line, bytes a line. Offsets count bytes of the file, or of its content where it is
// compressed with bgzip. Only files whose lines are equally long within a record (but for its last)
// have one.
//
//   write_text_atomic("genome.fa.fai", fasta_index_text(index_fasta("genome.fa")));
//   check_fasta_index("genome.fa", content.records);      // if there is a genome.fa.fai
//
// longspan reads whole FASTA files and needs no index to find its way; it uses one that is there as
// a witness: other names or lengths mean that file and index do not belong together. UserErrors
// name file and line. Pure functions but for reading the files; any thread.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

#include "data/fasta_parser.h"

namespace longspan {

struct FastaIndexEntry {
  std::string name;
  int64_t bases = 0;
  int64_t offset = 0;
  int64_t line_bases = 0;
  int64_t line_bytes = 0;  // with the line end

  bool operator==(const FastaIndexEntry&) const = default;
};

// Where the index of a FASTA file stands.
std::filesystem::path fasta_index_path(const std::filesystem::path& fasta);

// Checks a file as fasta_parser.h does and makes its index; bytes may be compressed with bgzip.
std::vector<FastaIndexEntry> index_fasta(std::string_view bytes, const std::string& origin);
std::vector<FastaIndexEntry> index_fasta(const std::filesystem::path& fasta);

std::string fasta_index_text(const std::vector<FastaIndexEntry>& entries);
std::vector<FastaIndexEntry> parse_fasta_index(std::string_view content, const std::string& origin);

// UserError if there is an index that is not of these records; none is fine.
void check_fasta_index(const std::filesystem::path& fasta, const std::vector<FastaRecord>& records);

}  // namespace longspan
