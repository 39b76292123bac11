#include "data/fasta_parser.h"

#include <utility>

#include "base/check.h"

namespace longspan {
namespace {

constexpr uint8_t kSoftMaskBit = 8;
constexpr std::string_view kSpace = " \t\r";

bool is_space(char character) {
  return kSpace.find(character) != std::string_view::npos;
}

std::string printable(char character) {
  if (character > ' ' && character <= '~') return text('\'', character, '\'');
  return text("the byte ", int{static_cast<unsigned char>(character)});
}

}  // namespace

void BaseStore::push_back(const MaskedBase& base) {
  const auto bits = static_cast<uint8_t>(base.base | (base.is_soft_masked ? kSoftMaskBit : 0));
  if (size_ % 2 == 0) {
    pairs_.push_back(bits);
  } else {
    pairs_.back() = static_cast<uint8_t>(pairs_.back() | bits << 4);
  }
  ++size_;
}

MaskedBase BaseStore::operator[](int64_t position) const {
  const uint8_t pair = pairs_[static_cast<size_t>(position / 2)];
  const int bits = position % 2 == 0 ? pair & 15 : pair >> 4;
  return {static_cast<Nucleotide>(bits & 7), (bits & kSoftMaskBit) != 0};
}

void FastaParser::feed(std::string_view piece) {
  for (const char character : piece) {
    if (character == '\n') {
      if (state_ == State::kHeader) end_header();
      state_ = State::kLineStart;
      ++line_;
    } else {
      take(character);
    }
  }
}

FastaContent FastaParser::finish() {
  if (state_ == State::kHeader) end_header();
  return std::exchange(content_, {});
}

void FastaParser::take(char character) {
  switch (state_) {
    case State::kLineStart:
      if (character == '>') {
        header_.clear();
        state_ = State::kHeader;
        return;
      }
      state_ = State::kSequence;
      return take_sequence(character);
    case State::kHeader:
      header_ += character;
      return;
    case State::kSequence:
    case State::kSequenceEnd:
      return take_sequence(character);
  }
}

void FastaParser::take_sequence(char character) {
  if (is_space(character)) {
    state_ = State::kSequenceEnd;
    return;
  }
  if (content_.records.empty()) {
    fail("text before the first '>'; a FASTA file starts with a record header such as '>chr1'");
  }
  if (state_ == State::kSequenceEnd) fail("white space inside a line of sequence");
  const NucleotideLetter& letter = nucleotide_letter(character);
  if (!letter.is_valid) {
    fail(text(printable(character), " in the sequence of record '", content_.records.back().name,
              "' is not a nucleotide; A C G T U N and the IUPAC codes are"));
  }
  content_.store.push_back({letter.base, letter.is_lower_case});
  content_.records.back().bases.end = content_.store.size();
  content_.n_bases += letter.base == kBaseN;
  content_.ambiguous_bases += letter.is_ambiguous;
  content_.soft_masked_bases += letter.is_lower_case;
}

void FastaParser::end_header() {
  const std::string name = header_.substr(0, header_.find_first_of(kSpace));
  if (name.empty()) fail("a record header without a name; write '>name'");
  const auto [earlier, is_new] = line_of_name_.emplace(name, line_);
  if (!is_new) {
    fail(text("record '", name, "' was already on line ", earlier->second,
              "; names must differ within a file"));
  }
  content_.records.push_back({name, line_, {content_.store.size(), content_.store.size()}});
}

void FastaParser::fail(const std::string& what) const {
  throw UserError(text(origin_, ":", line_, ": ", what));
}

}  // namespace longspan
