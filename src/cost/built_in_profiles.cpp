#include "cost/built_in_profiles.h"

#include "base/error.h"

namespace longspan {

std::vector<std::string> device_profile_names() {
  return {"h200", "laptop_cpu"};
}

DeviceProfile device_profile(const std::string& name) {
  if (name == "h200") return h200_profile();
  if (name == "laptop_cpu") return laptop_cpu_profile();
  std::string known;
  for (const std::string& other : device_profile_names()) {
    known += (known.empty() ? "" : ", ") + other;
  }
  throw UserError(text("unknown device profile \"", name, "\"; built in are: ", known,
                       "; longspan profile measures another"));
}

}  // namespace longspan
