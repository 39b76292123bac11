// Any bytes as a jsonl file: a UserError, or documents whose weights fit their tokens.
#include <cstddef>
#include <cstdint>
#include <string_view>

#include "base/check.h"
#include "data/jsonl_source.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace longspan;
  const std::string_view content(reinterpret_cast<const char*>(data), size);
  const Tokenizer tokenizer = make_tokenizer("byte");
  try {
    for (const JsonlLine& line : scan_jsonl(content, tokenizer, "input").lines) {
      const JsonlDocument document =
          parse_jsonl_line(content.substr(static_cast<size_t>(line.bytes.begin),
                                          static_cast<size_t>(line.bytes.size())),
                           tokenizer, "input");
      const DocumentContent& read = document.content;
      LONGSPAN_CHECK(static_cast<int64_t>(read.tokens.size()) == line.tokens, line.tokens);
      LONGSPAN_CHECK(read.weights.empty() || read.weights.size() == read.tokens.size(),
                     read.weights.size());
    }
  } catch (const UserError&) {
  }
  return 0;
}
