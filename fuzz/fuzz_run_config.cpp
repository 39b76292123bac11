// Any bytes as a run configuration: a UserError, or a configuration whose printed text loads again
// to the same. Behind a zero byte stand overrides, one a line.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "base/check.h"
#include "config/config_loader.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace longspan;
  const std::string_view content(reinterpret_cast<const char*>(data), size);
  const size_t end = std::min(content.find('\0'), size);
  std::vector<std::string> overrides;
  for (size_t at = end + 1; at < size;) {
    const size_t line_end = std::min(content.find('\n', at), size);
    overrides.emplace_back(content.substr(at, line_end - at));
    at = line_end + 1;
  }
  try {
    const LoadedConfig loaded = parse_run_config(content.substr(0, end), "input", overrides);
    const LoadedConfig saved = parse_run_config(loaded.toml(), "saved");
    LONGSPAN_CHECK(saved.toml() == loaded.toml(), loaded.toml());
    const LoadedConfig printed = parse_run_config(loaded.annotated_toml(), "printed");
    for (size_t idx = 0; idx < loaded.settings.size(); ++idx) {
      const Setting& setting = loaded.settings[idx];
      LONGSPAN_CHECK(saved.settings[idx].value == setting.value, setting.key->name);
      LONGSPAN_CHECK(printed.settings[idx].value == setting.value, setting.key->name);
    }
  } catch (const UserError&) {
  }
  return 0;
}
