// What the command says to a command line that it does not understand: one line behind
// "longspan: error:", which names the verb and what to do, and exit code 2, as for every other
// mistake.
//
//   check_verbs(app, argc, argv);                          // UserError: unknown command "trian"
//   catch (const CLI::ParseError& error) { return report_usage(app, error); }
//
// Main thread.
#pragma once

namespace CLI {
class App;
class ParseError;
}  // namespace CLI

namespace longspan {

// UserError if a word stands where a verb belongs and is none, or if there is no word.
void check_verbs(const CLI::App& app, int argc, const char* const* argv);

// The exit code; 0 for help and the version, which are printed.
int report_usage(const CLI::App& app, const CLI::ParseError& error);

}  // namespace longspan
