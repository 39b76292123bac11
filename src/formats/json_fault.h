// What is wrong with text that the JSON library refused, in plain words and with its place.
//
//   catch (const nlohmann::json::exception& error) {
//     throw UserError(text("lines.jsonl:7: ", describe_json_error(error).in_line()));
//   }
//   // lines.jsonl:7: not valid JSON at column 13: unexpected end of input; expected '}'
//
// Why: the library's own messages begin with the names of its classes and count lines within what
// it was given, which may be one line of a file. Pure functions; any thread.
#pragma once

#include <cstdint>
#include <exception>
#include <string>

namespace longspan {

// Places count from 1; 0 where the library names none (a key that is missing has no place).
struct JsonFault {
  int64_t line = 0;
  int64_t column = 0;
  std::string reason;

  // "not valid JSON at column 5: unexpected end of input"
  std::string in_line() const;
};

JsonFault describe_json_error(const std::exception& error);

}  // namespace longspan
