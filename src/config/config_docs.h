// docs/configuration.md, written from the table of keys, so that the page cannot lag behind the
// program. write_config_docs writes it; a test fails if the committed file differs.
//
//   write_config_docs docs/configuration.md       // after a change of keys.cpp
//
// Pure function; any thread.
#pragma once

#include <string>

namespace longspan {

std::string config_docs();

}  // namespace longspan
