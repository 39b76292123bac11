// The command: reads the verb and runs it. Exit codes: failure.h.
#include <CLI/CLI.hpp>

#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <iostream>

#include "base/error.h"
#include "failure.h"
#include "option_checks.h"
#include "verbs.h"

namespace {

// Ends the process once the work is done. libtorch takes its operator tables down in destructors of
// static objects, and on some systems aborts there, which would turn a success into exit code 134;
// nothing of ours is left to do by then.
[[noreturn]] void leave(int code) {
  std::cout.flush();
  std::cerr.flush();
  std::fflush(nullptr);
  std::_Exit(code);
}

int run_command(int argc, char** argv) {
  // A file that may not grow further is an error to report, like a full disk, and no reason to die.
  std::signal(SIGXFSZ, SIG_IGN);
  CLI::App app("longspan trains language models on very long, very unequal documents.");
  app.set_version_flag("--version", LONGSPAN_VERSION);
  app.require_subcommand(1);
  longspan::VerbRunner run;
  longspan::add_train(app, run);
  longspan::add_plan(app, run);
  longspan::add_eval(app, run);
  longspan::add_data(app, run);
  longspan::add_export(app, run);
  longspan::add_profile(app, run);
  longspan::add_doctor(app, run);
  longspan::refuse_empty_words(app);
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    return app.exit(error) == 0 ? 0 : 2;
  }
  try {
    return run();
  } catch (const std::exception& error) {
    return longspan::report_failure(error);
  }
}

}  // namespace

int main(int argc, char** argv) {
  leave(run_command(argc, argv));
}
