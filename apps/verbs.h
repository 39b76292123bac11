// The verbs of the command, one file each: every function adds its subcommand and what runs when it
// is chosen.
//
//   CLI::App app;  VerbRunner run;
//   add_train(app, run);  ...  app.parse(...);  return run();
//
// Verbs turn arguments into calls of src/ and print; they hold no logic of their own. Errors leave
// as exceptions, and longspan.cpp turns them into a message and an exit code. Main thread only.
#pragma once

#include <functional>

namespace CLI {
class App;
}

namespace longspan {

// What the chosen verb does; its result is the exit code.
using VerbRunner = std::function<int()>;

void add_train(CLI::App& app, VerbRunner& run);
void add_plan(CLI::App& app, VerbRunner& run);
void add_eval(CLI::App& app, VerbRunner& run);
void add_data(CLI::App& app, VerbRunner& run);
void add_export(CLI::App& app, VerbRunner& run);
void add_profile(CLI::App& app, VerbRunner& run);
void add_doctor(CLI::App& app, VerbRunner& run);

}  // namespace longspan
