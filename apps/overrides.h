// Configuration overrides on a verb's command line: --section.key=value.
//
//   allow_overrides(*verb);   // what CLI11 does not know is kept for the configuration loader,
//   which is strict
//
// Main thread.
#pragma once

#include <CLI/CLI.hpp>

namespace longspan {

inline void allow_overrides(CLI::App& verb) {
  verb.allow_extras();
  verb.footer(
      "Any key of the configuration can be given as --section.key=value; docs/configuration.md "
      "lists them.");
}

}  // namespace longspan
