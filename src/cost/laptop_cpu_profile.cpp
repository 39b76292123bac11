#include "cost/built_in_profiles.h"

namespace longspan {

DeviceProfile laptop_cpu_profile() {
  DeviceProfile profile;
  profile.name = "laptop_cpu";
  profile.source = "built in: one assumed rate for all shapes";
  profile.forward.causal = RateGrid({1}, {1}, {1e10});
  profile.forward.full = profile.forward.causal;
  profile.backward = profile.forward;
  profile.matrix_flops_per_s = 1e11;
  return profile;
}

}  // namespace longspan
