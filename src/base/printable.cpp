#include "base/printable.h"

namespace longspan {

std::string printable(std::string_view written) {
  constexpr std::string_view kDigits = "0123456789abcdef";
  std::string shown;
  for (size_t idx = 0; idx < written.size(); ++idx) {
    const auto byte = static_cast<unsigned char>(written[idx]);
    // The control characters from U+0080 on are two bytes of UTF-8; elsewhere bytes stay as they
    // are.
    const bool begins_control = byte == 0xc2 && idx + 1 < written.size() &&
                                static_cast<unsigned char>(written[idx + 1]) >= 0x80 &&
                                static_cast<unsigned char>(written[idx + 1]) < 0xa0;
    const bool is_kept = byte == '\n' || byte == '\t';
    const auto add = [&](unsigned char hidden) {
      shown += {'\\', 'x', kDigits[hidden >> 4], kDigits[hidden & 15]};
    };
    if (begins_control) {
      add(byte);
      add(static_cast<unsigned char>(written[++idx]));
    } else if ((byte < 0x20 && !is_kept) || byte == 0x7f) {
      add(byte);
    } else {
      shown += written[idx];
    }
  }
  return shown;
}

}  // namespace longspan
