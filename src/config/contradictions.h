// Checks that look at several keys at once, made when all values are known, those of "auto" too.
//
//   contradictory configuration: layout.band = 4 (run.toml:5) is more than layout.chunks = 2
//   (default)
//
// Each message names both values and where they came from. An option that would have no effect is a
// contradiction too: whoever sets it expects one. Private to config/; pure function.
#pragma once

#include "config/config_loader.h"

namespace longspan {

// UserError at the first contradiction.
void check_contradictions(const LoadedConfig& loaded, const Surroundings& around);

}  // namespace longspan
