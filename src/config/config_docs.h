// docs/configuration.md, written from the table of keys. The program write_config_docs writes it; a
// test fails if the committed file differs.
#pragma once

#include <string>

namespace longspan {

std::string config_docs();

}  // namespace longspan
