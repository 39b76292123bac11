// The three kinds of failure and how they leave the program.
//
//   UserError         the input, the configuration or the machine is not as it must be. The text
//   says
//                     what, where and how to mend it. The program exits with code 2.
//   DistributedError  another rank stalled, died or failed: names rank, operation and peer. Exit
//   code 3. InternalError     a broken invariant of longspan itself (see check.h). Exit code 70.
//
// Example:
//   throw UserError(text(path, ":", line, ": sequence text before the first '>'; start the file
//   with a "
//                        "record header such as '>chr1'"));
//
// Libraries throw, they never print or exit; apps/longspan.cpp turns the kind into a message and a
// code. Thread contract: values, no shared state. A rank thread that fails hands its exception to
// the rank launcher, which aborts the communicator so that no other rank waits for ever.
#pragma once

#include <sstream>
#include <stdexcept>
#include <string>

namespace longspan {

// A message ends at its first zero byte wherever it is read with what(): \x00 in its place.
std::string without_zero_bytes(const std::string& message);

struct UserError : std::runtime_error {
  explicit UserError(const std::string& message)
      : std::runtime_error(without_zero_bytes(message)) {}
};

struct DistributedError : std::runtime_error {
  explicit DistributedError(const std::string& message)
      : std::runtime_error(without_zero_bytes(message)) {}
};

struct InternalError : std::logic_error {
  explicit InternalError(const std::string& message)
      : std::logic_error(without_zero_bytes(message)) {}
};

// Concatenates the arguments as an output stream prints them.
template <typename... Parts>
std::string text(const Parts&... parts) {
  std::ostringstream stream;
  (stream << ... << parts);
  return stream.str();
}

}  // namespace longspan
