// The two tokenizers that are built in.
//
//   byte        ids 0..255 are the bytes of the text; 256 ends a document.
//   nucleotide  A 0, C 1, G 2, T 3, N 4; 5 ends a document. U reads as T, lower case as upper case,
//               the other IUPAC codes as N; white space is skipped; anything else is an error.
//
//   const Tokenizer tokenizer = make_tokenizer("byte");
//   tokenizer.encode("text", "page.txt");            // 't' 'e' 'x' 't' 256
//
// The end-of-document token follows each document that is not empty; without it the vocabulary is
// one smaller. Vocabularies of other tokenizers come as token shards (scripts/tokenize_shards.py).
// A value; any thread.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace longspan {

// Ids of the nucleotide tokenizer.
enum Nucleotide : uint8_t { kBaseA = 0, kBaseC = 1, kBaseG = 2, kBaseT = 3, kBaseN = 4 };

// What one letter of a sequence is.
struct NucleotideLetter {
  Nucleotide base = kBaseN;
  bool is_valid = false;      // a letter of the IUPAC alphabet
  bool is_ambiguous = false;  // one of the codes other than A C G T U N, read as N
  bool is_lower_case = false;
};

const NucleotideLetter& nucleotide_letter(char letter);

class Tokenizer {
 public:
  enum class Kind { kByte, kNucleotide };

  Tokenizer(Kind kind, bool ends_documents) : kind_(kind), ends_documents_(ends_documents) {}

  Kind kind() const { return kind_; }
  const char* name() const { return kind_ == Kind::kByte ? "byte" : "nucleotide"; }
  int64_t vocabulary_size() const { return letters() + (ends_documents_ ? 1 : 0); }
  // The id put after each document, if one is.
  std::optional<int32_t> end_of_document() const;

  // All tokens of a document; `origin` names it in errors (UserError with position).
  std::vector<int32_t> encode(std::string_view document, const std::string& origin) const;
  int64_t encoded_length(std::string_view document, const std::string& origin) const;
  // The id of one base of a sequence.
  int32_t base_id(Nucleotide base) const;
  // The id of the base that pairs with that of `id`; ids that are no base pair with themselves.
  int32_t complement(int32_t id) const;

 private:
  int32_t letters() const { return kind_ == Kind::kByte ? 256 : 5; }

  Kind kind_;
  bool ends_documents_;
};

// UserError that names the two if `name` is neither.
Tokenizer make_tokenizer(const std::string& name, bool ends_documents = true);

}  // namespace longspan
