// What this program was built from. A library of its own, linked by the program alone: it changes
// with every commit, and nothing else should be built again for that.
//
//   header.commit = build_commit();
//
// Constant; any thread.
#pragma once

#include <string_view>

namespace longspan {

// Twelve digits of the commit, with "-dirty" behind if tracked files differed from it; empty if the
// sources were no git checkout.
std::string_view build_commit();

}  // namespace longspan
