// Any bytes as a device profile: a UserError, or a profile that survives being written and gives
// finite costs.
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <nlohmann/json.hpp>
#include <string_view>

#include "base/check.h"
#include "cost/device_profile.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace longspan;
  const std::string_view content(reinterpret_cast<const char*>(data), size);
  try {
    const DeviceProfile profile = device_profile_from_json(parse_json(content, "input"), "input");
    LONGSPAN_CHECK(device_profile_from_json(to_json(profile), "written") == profile,
                   "another profile when written and read");
    for (const Direction direction : {Direction::kForward, Direction::kBackward}) {
      const PassRates& rates =
          direction == Direction::kForward ? profile.forward : profile.backward;
      const AttentionCost cost(profile.shape, rates, direction);
      for (const Range& queries : {Range{0, 1}, Range{300, 1000}, Range{0, int64_t{1} << 24}}) {
        const double task_s = cost.task_s(queries, {0, queries.end});
        LONGSPAN_CHECK(std::isfinite(task_s) && task_s > 0, task_s);
        LONGSPAN_CHECK(std::isfinite(cost.row_s(queries.end)), cost.row_s(queries.end));
      }
      cross_validate(rates.causal);
    }
  } catch (const UserError&) {
  }
  return 0;
}
