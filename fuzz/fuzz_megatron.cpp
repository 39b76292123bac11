// Any bytes as a Megatron index: a UserError, or documents inside .bin. The first four bytes of the
// input say how large .bin is.
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>

#include "base/check.h"
#include "formats/megatron_index.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace longspan;
  uint32_t bin_bytes = 0;
  if (size < sizeof(bin_bytes)) return 0;
  std::memcpy(&bin_bytes, data, sizeof(bin_bytes));
  const auto index = std::as_bytes(std::span(data, size).subspan(sizeof(bin_bytes)));
  try {
    const MegatronIndex opened(index, bin_bytes, "input");
    for (int64_t document = 0; document < opened.documents(); ++document) {
      const Range bytes = opened.document_bytes(document);
      LONGSPAN_CHECK(bytes.begin <= bytes.end && Range(0, bin_bytes).contains(bytes), bytes);
    }
  } catch (const UserError&) {
  }
  return 0;
}
