// Any bytes as a FASTA file, plain or compressed: a UserError, or records that cover what was read,
// and an index that is of these records. And any bytes as an index: one that is read is written as
// one that reads the same.
#include <cstddef>
#include <cstdint>
#include <string_view>

#include "base/check.h"
#include "data/fasta_index.h"
#include "data/fasta_parser.h"
#include "formats/gzip_reader.h"

namespace longspan {
namespace {

void check_records(const FastaContent& content) {
  int64_t end = 0;
  for (const FastaRecord& record : content.records) {
    LONGSPAN_CHECK(record.bases.begin == end && record.bases.end >= end, record.bases);
    end = record.bases.end;
  }
  LONGSPAN_CHECK(end == content.store.size(), end);
}

void read_as_fasta(std::string_view bytes) {
  GzipReader reader(bytes, "input");
  FastaParser parser("input");
  while (!reader.next().empty()) parser.feed(reader.piece());
  const FastaContent content = parser.finish();
  check_records(content);
  const auto entries = index_fasta(bytes, "input");
  LONGSPAN_CHECK(entries.size() == content.records.size(), entries.size());
  for (size_t idx = 0; idx < entries.size(); ++idx) {
    LONGSPAN_CHECK(entries[idx].name == content.records[idx].name, entries[idx].name);
    LONGSPAN_CHECK(entries[idx].bases == content.records[idx].bases.size(), entries[idx].bases);
  }
}

void read_as_index(std::string_view bytes) {
  const auto entries = parse_fasta_index(bytes, "input");
  LONGSPAN_CHECK(parse_fasta_index(fasta_index_text(entries), "again") == entries, entries.size());
}

}  // namespace
}  // namespace longspan

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string_view bytes(reinterpret_cast<const char*>(data), size);
  for (const auto read : {longspan::read_as_fasta, longspan::read_as_index}) {
    try {
      read(bytes);
    } catch (const longspan::UserError&) {
    }
  }
  return 0;
}
