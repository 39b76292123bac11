// Requests to stop a training run: SIGTERM, SIGINT and SIGUSR1 set a flag that the run looks at.
//
// Why so early: constructors of libtorch take a third of a second before main, and a scheduler's
// warning in that time would end the process by the signal. The handlers are installed before
// them, if the verb is "train"; other verbs end by the signal, as is usual.
//
//   TrainProcess train{.stop = &stop_requested(), ...};
//
// The first SIGINT says on standard error that it was heard; a second one ends the process at once,
// for people at a terminal.
#pragma once

#include <atomic>

namespace longspan {

const std::atomic<bool>& stop_requested();

}  // namespace longspan
