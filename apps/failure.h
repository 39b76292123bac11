// Turns a failure into a message and an exit code.
//
//   return report_failure(error);       // "longspan: error: ...", 2
//   return failure_code(error);         // 2 alone, where another process prints
//
//   2  the input, the configuration or the machine is not as it must be
//   3  another rank stalled, died or failed    70  a broken invariant of longspan itself
#pragma once

#include <exception>

namespace longspan {

int failure_code(const std::exception& error);
int report_failure(const std::exception& error);

}  // namespace longspan
