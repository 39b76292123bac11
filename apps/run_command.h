// The whole command behind main(): parses the arguments, runs the verb, reports its failure.
//
//   int main(int argc, char** argv) { leave(run_command(argc, argv)); }
//
// Apart from main() so that a test program can run many commands, each in a process of its own that
// it forks once libtorch is loaded (tests/longspan_server.cpp). Main thread.
#pragma once

namespace longspan {

// The exit code: 0, or one of failure.h.
int run_command(int argc, char** argv);

// Ends the process once the work is done, without destructors of static objects.
[[noreturn]] void leave(int code);

}  // namespace longspan
