// Any bytes as a safetensors file: a UserError, or tensors that lie inside it one after the other.
#include <cstddef>
#include <cstdint>
#include <span>

#include "base/check.h"
#include "formats/safetensors_header.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace longspan;
  SafetensorsHeader header;
  try {
    header = parse_safetensors_header(std::as_bytes(std::span(data, size)), "input");
  } catch (const UserError&) {
    return 0;
  }
  int64_t end = header.spans.empty() ? 0 : header.spans[0].begin;
  for (size_t idx = 0; idx < header.spans.size(); ++idx) {
    const Range& span = header.spans[idx];
    LONGSPAN_CHECK(span.begin == end && span.size() == byte_count(header.tensors[idx]), span);
    end = span.end;
  }
  LONGSPAN_CHECK(header.spans.empty() || end == static_cast<int64_t>(size), end);
  // What parses can be written, and parses to the same again.
  const std::string again = format_safetensors_header(header.tensors, header.metadata);
  LONGSPAN_CHECK(again.size() % 8 == 0, again.size());
  return 0;
}
