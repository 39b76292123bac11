// Any bytes as a FASTA file, plain or compressed: a UserError, or records that cover what was read.
#include <cstddef>
#include <cstdint>
#include <string_view>

#include "base/check.h"
#include "data/fasta_parser.h"
#include "formats/gzip_reader.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace longspan;
  try {
    GzipReader reader({reinterpret_cast<const char*>(data), size}, "input");
    FastaParser parser("input");
    while (!reader.next().empty()) parser.feed(reader.piece());
    const FastaContent content = parser.finish();
    int64_t end = 0;
    for (const FastaRecord& record : content.records) {
      LONGSPAN_CHECK(record.bases.begin == end && record.bases.end >= end, record.bases);
      end = record.bases.end;
    }
    LONGSPAN_CHECK(end == content.store.size(), end);
  } catch (const UserError&) {
  }
  return 0;
}
