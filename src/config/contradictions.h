// Checks that look at several keys at once. Private to config/; each message names both values and
// where they came from. An option that would have no effect is a contradiction too.
#pragma once

#include "config/config_loader.h"

namespace longspan {

// UserError at the first contradiction.
void check_contradictions(const LoadedConfig& loaded, const Surroundings& around);

}  // namespace longspan
