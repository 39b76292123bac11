// Opens a file for reading that must be a regular one: every input file of the program passes here.
//
// Why: a pipe would let the program wait for a writer, a device can be endless, and neither can be
// mapped or read a second time. They are refused at once, whatever they would have held.
//
//   const int descriptor = open_regular(path);     // UserError: path and reason
//   const std::string content = read_text(path);   // the bytes of such a file
//
// Pure functions; any thread. The descriptor is the caller's to close.
#pragma once

#include <filesystem>
#include <string>

namespace longspan {

int open_regular(const std::filesystem::path& path);

std::string read_text(const std::filesystem::path& path);

}  // namespace longspan
