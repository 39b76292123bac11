#include "base/error.h"

namespace longspan {

std::string without_zero_bytes(const std::string& message) {
  std::string whole;
  for (const char character : message) {
    if (character == '\0') {
      whole += "\\x00";
    } else {
      whole += character;
    }
  }
  return whole;
}

}  // namespace longspan
