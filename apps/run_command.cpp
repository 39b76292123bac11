#include "run_command.h"

#include <CLI/CLI.hpp>

#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <iostream>

#include "base/error.h"
#include "failure.h"
#include "option_checks.h"
#include "usage.h"
#include "verbs.h"

namespace longspan {

int run_command(int argc, char** argv) {
  // A file that may not grow further is an error to report, like a full disk, and no reason to die.
  std::signal(SIGXFSZ, SIG_IGN);
  CLI::App app("longspan trains language models on very long, very unequal documents.", "longspan");
  app.set_version_flag("--version", LONGSPAN_VERSION);
  app.require_subcommand(1);
  VerbRunner run;
  add_train(app, run);
  add_plan(app, run);
  add_eval(app, run);
  add_data(app, run);
  add_export(app, run);
  add_profile(app, run);
  add_doctor(app, run);
  refuse_empty_words(app);
  try {
    check_verbs(app, argc, argv);
    app.parse(argc, argv);
    return run();
  } catch (const CLI::ParseError& error) {
    return report_usage(app, error);
  } catch (const std::exception& error) {
    return report_failure(error);
  }
}

// libtorch takes its operator tables down in destructors of static objects, and on some systems
// aborts there, which would turn a success into exit code 134; nothing of ours is left to do by
// then.
void leave(int code) {
  std::cout.flush();
  std::cerr.flush();
  std::fflush(nullptr);
  std::_Exit(code);
}

}  // namespace longspan
