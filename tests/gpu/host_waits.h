// How often a thread has waited for its GPU: tests that a step waits where it declares to.
//
//   const int64_t before = host_waits();   ... a step ...   host_waits() - before
//
// host_waits.cpp stands in front of the CUDA runtime's functions that wait (for a stream, a device,
// a copy), so it counts those of every library of the program. Events are left out: timers ask them
// after the step's work. One counter for each thread.
#pragma once

#include <cstdint>

namespace longspan {

int64_t host_waits();

}  // namespace longspan
