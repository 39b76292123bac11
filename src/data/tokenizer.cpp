#include "data/tokenizer.h"

#include "base/check.h"

namespace longspan {
namespace {

constexpr std::string_view kBases = "ACGTN";
constexpr std::string_view kAmbiguousCodes = "RYSWKMBDHV";

std::array<NucleotideLetter, 256> make_letters() {
  std::array<NucleotideLetter, 256> letters{};
  const auto set = [&](char upper, Nucleotide base, bool is_ambiguous) {
    letters[static_cast<size_t>(upper)] = {base, true, is_ambiguous, false};
    letters[static_cast<size_t>(upper - 'A' + 'a')] = {base, true, is_ambiguous, true};
  };
  for (size_t id = 0; id < kBases.size(); ++id) set(kBases[id], static_cast<Nucleotide>(id), false);
  set('U', kBaseT, false);
  for (const char code : kAmbiguousCodes) set(code, kBaseN, true);
  return letters;
}

bool is_space(char letter) {
  return letter == ' ' || letter == '\t' || letter == '\n' || letter == '\r';
}

Nucleotide paired(Nucleotide base) {
  return base == kBaseN ? kBaseN : static_cast<Nucleotide>(kBaseT - base);
}

}  // namespace

const NucleotideLetter& nucleotide_letter(char letter) {
  static const std::array<NucleotideLetter, 256> letters = make_letters();
  return letters[static_cast<unsigned char>(letter)];
}

std::optional<int32_t> Tokenizer::end_of_document() const {
  return ends_documents_ ? std::optional(letters()) : std::nullopt;
}

std::vector<int32_t> Tokenizer::encode(std::string_view document, const std::string& origin) const {
  std::vector<int32_t> ids;
  ids.reserve(document.size() + 1);
  if (kind_ == Kind::kByte) {
    for (const char byte : document) ids.push_back(static_cast<unsigned char>(byte));
  } else {
    for (size_t idx = 0; idx < document.size(); ++idx) {
      const NucleotideLetter& letter = nucleotide_letter(document[idx]);
      if (letter.is_valid) {
        ids.push_back(letter.base);
      } else if (!is_space(document[idx])) {
        throw UserError(text(origin, ": byte ", idx, " (value ",
                             int{static_cast<unsigned char>(document[idx])},
                             ") is not a nucleotide; the nucleotide tokenizer reads A C G T U N "
                             "and the IUPAC codes"));
      }
    }
  }
  if (ends_documents_ && !ids.empty()) ids.push_back(letters());
  return ids;
}

int64_t Tokenizer::encoded_length(std::string_view document, const std::string& origin) const {
  if (kind_ != Kind::kByte) return static_cast<int64_t>(encode(document, origin).size());
  if (document.empty()) return 0;
  return static_cast<int64_t>(document.size()) + (ends_documents_ ? 1 : 0);
}

int32_t Tokenizer::base_id(Nucleotide base) const {
  return kind_ == Kind::kByte ? int32_t{kBases[base]} : int32_t{base};
}

int32_t Tokenizer::complement(int32_t id) const {
  if (kind_ == Kind::kNucleotide) {
    return id <= kBaseN && id >= 0 ? paired(static_cast<Nucleotide>(id)) : id;
  }
  if (id < 0 || id > 255) return id;
  const NucleotideLetter& letter = nucleotide_letter(static_cast<char>(id));
  if (!letter.is_valid || letter.is_ambiguous) return id;
  const int32_t upper = kBases[paired(letter.base)];
  return letter.is_lower_case ? upper - 'A' + 'a' : upper;
}

Tokenizer make_tokenizer(const std::string& name, bool ends_documents) {
  if (name == "byte") return {Tokenizer::Kind::kByte, ends_documents};
  if (name == "nucleotide") return {Tokenizer::Kind::kNucleotide, ends_documents};
  throw UserError(text("tokenizer '", name,
                       "' is not built in; there are 'byte' and 'nucleotide', and for any "
                       "tokenizer.json scripts/tokenize_shards.py writes token shards"));
}

}  // namespace longspan
