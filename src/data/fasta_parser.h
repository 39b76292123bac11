// The records of a FASTA file, four bits a base.
//
// A record begins with a line '>name description'; its name ends at the first white space. The
// lines up to the next '>' are its sequence: A C G T N, U (read as T), the other IUPAC codes (read
// as N and counted), in either case (lower case is the soft mask). Line ends may be LF or CRLF;
// blank lines and white space at the end of a line are skipped. Anything else, sequence before the
// first '>', a record without a name or with the name of an earlier one is a UserError naming file
// and line.
//
//   FastaParser parser("genome.fa");
//   while (!reader.next().empty()) parser.feed(reader.piece());     // pieces cut anywhere
//   const FastaContent content = parser.finish();
//
// Memory: half a byte a base (1.6 GB for a human genome). A parser belongs to one thread; its
// result is a value.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "base/range.h"
#include "data/tokenizer.h"

namespace longspan {

struct MaskedBase {
  Nucleotide base = kBaseN;
  bool is_soft_masked = false;
};

// Bases packed two to a byte.
class BaseStore {
 public:
  void push_back(const MaskedBase& base);
  MaskedBase operator[](int64_t position) const;
  int64_t size() const { return size_; }

 private:
  std::vector<uint8_t> pairs_;
  int64_t size_ = 0;
};

struct FastaRecord {
  std::string name;
  int64_t line = 0;  // of its '>', counted from 1
  Range bases;       // in the store
};

struct FastaContent {
  BaseStore store;
  std::vector<FastaRecord> records;
  int64_t ambiguous_bases = 0;  // IUPAC codes read as N
  int64_t n_bases = 0;          // N, the ambiguous ones included
  int64_t soft_masked_bases = 0;
};

class FastaParser {
 public:
  explicit FastaParser(std::string origin) : origin_(std::move(origin)) {}

  void feed(std::string_view piece);
  FastaContent finish();

 private:
  enum class State { kLineStart, kHeader, kSequence, kSequenceEnd };

  void take(char character);
  void take_sequence(char character);
  void end_header();
  [[noreturn]] void fail(const std::string& what) const;

  std::string origin_;
  FastaContent content_;
  State state_ = State::kLineStart;
  int64_t line_ = 1;
  std::string header_;
  std::map<std::string, int64_t> line_of_name_;
};

}  // namespace longspan
