#include "formats/json.h"

#include <nlohmann/json.hpp>

#include "base/error.h"
#include "formats/atomic_file.h"
#include "formats/json_fault.h"
#include "formats/regular_file.h"

namespace longspan {

Json parse_json(std::string_view source, const std::string& origin) {
  try {
    return Json::parse(source);
  } catch (const Json::exception& error) {
    const JsonFault fault = describe_json_error(error);
    throw UserError(text(origin, ":", fault.line, ": ", fault.in_line()));
  }
}

Json read_json(const std::filesystem::path& path) {
  return parse_json(read_text(path), path.string());
}

void write_json_atomic(const std::filesystem::path& path, const Json& value) {
  // Names of files need not be UTF-8; what is not gets replacement signs.
  write_text_atomic(path, value.dump(2, ' ', false, Json::error_handler_t::replace) + "\n");
}

void write_text_atomic(const std::filesystem::path& path, std::string_view content) {
  AtomicFile file(path);
  file.write(content);
  file.publish();
}

}  // namespace longspan
