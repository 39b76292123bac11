#include "stop_signals.h"

#include <unistd.h>

#include <csignal>
#include <string_view>

namespace longspan {
namespace {

std::atomic<bool> requested = false;
volatile std::sig_atomic_t interrupted = 0;

// A step may take minutes, and until it ends nothing else says that the key was heard.
constexpr std::string_view kStopping =
    "\nlongspan: stopping after the step in work, with a checkpoint; Ctrl-C again ends at once, "
    "without one\n";

void request_stop(int signal) {
  if (signal == SIGINT) {
    if (interrupted != 0) {
      std::signal(SIGINT, SIG_DFL);
      std::raise(SIGINT);
    }
    interrupted = 1;
    // Of what writes, this alone is allowed in a handler. Nobody can be told that it failed.
    [[maybe_unused]] const ssize_t written =
        ::write(STDERR_FILENO, kStopping.data(), kStopping.size());
  }
  requested = true;
}

void install(int argument_count, char** arguments, char**) {
  if (argument_count < 2 || std::string_view(arguments[1]) != "train") return;
  for (const int signal : {SIGTERM, SIGINT, SIGUSR1}) {
    // What was ignored stays so: nohup and background jobs rely on it.
    if (std::signal(signal, request_stop) == SIG_IGN) std::signal(signal, SIG_IGN);
  }
}

// The loader calls what stands here before the constructors of any library.
using BeforeConstructors = void (*)(int, char**, char**);
[[gnu::section(".preinit_array"), gnu::used]] const BeforeConstructors kInstall = install;

}  // namespace

const std::atomic<bool>& stop_requested() {
  return requested;
}

}  // namespace longspan
