// Device profiles that the program knows without measuring. Private to cost/; device_profile.h is
// the public header.
//
// Why: plans for machines that are not at hand need rates, too. Each profile's `source` says where
// its figures come from; a profile measured on the machine itself (`longspan profile`) is better.
//
// Values; any thread; the same bits on every machine.
#pragma once

#include "cost/device_profile.h"

namespace longspan {

DeviceProfile h200_profile();
DeviceProfile laptop_cpu_profile();

}  // namespace longspan
