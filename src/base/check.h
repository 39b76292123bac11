// Invariants of our own code, checked in every build.
//
//   LONGSPAN_CHECK(rows.size() == expected, "rows ", rows.size(), ", expected ", expected);
//
// throws InternalError with file, line, the condition and the values. For mistakes of a user throw
// UserError instead. Both sides of the comparison belong in the message.
#pragma once

#include "base/error.h"

#define LONGSPAN_CHECK(condition, ...)                                                  \
  do {                                                                                  \
    if (!(condition)) {                                                                 \
      throw ::longspan::InternalError(::longspan::text(                                 \
          __FILE__, ":", __LINE__, ": check failed: ", #condition, "; ", __VA_ARGS__)); \
    }                                                                                   \
  } while (false)
