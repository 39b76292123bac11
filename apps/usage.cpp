#include "usage.h"

#include <CLI/CLI.hpp>

#include <algorithm>
#include <string>
#include <vector>

#include "base/error.h"
#include "base/nearest_name.h"
#include "failure.h"

namespace longspan {
namespace {

// "longspan data pack": the command as it was typed, up to the verb that was understood.
std::string command_of(const CLI::App& app) {
  std::string command = app.get_name();
  const CLI::App* at = &app;
  while (!at->get_subcommands().empty()) {
    at = at->get_subcommands().front();
    command += " " + at->get_name();
  }
  return command;
}

std::vector<std::string> verbs_of(const CLI::App& app) {
  std::vector<std::string> names;
  for (const CLI::App* verb : app.get_subcommands([](const CLI::App*) { return true; })) {
    names.push_back(verb->get_name());
  }
  return names;
}

std::string listed(const std::vector<std::string>& words) {
  std::string result;
  for (const std::string& word : words) result += (result.empty() ? "" : ", ") + word;
  return result;
}

}  // namespace

void check_verbs(const CLI::App& app, int argc, const char* const* argv) {
  const CLI::App* at = &app;
  std::string command = app.get_name();
  for (int idx = 1; !verbs_of(*at).empty(); ++idx) {
    const std::vector<std::string> verbs = verbs_of(*at);
    const std::string word = idx < argc ? argv[idx] : "";
    const bool is_option = word.starts_with('-');
    if (is_option && at->get_option_no_throw(word) != nullptr) return;  // such as --help
    if (std::find(verbs.begin(), verbs.end(), word) == verbs.end()) {
      std::string what = "no command given";
      if (is_option) what = "\"" + word + "\" stands where a command belongs";
      if (!word.empty() && !is_option) {
        what = "unknown command \"" + word + "\"; nearest: " + nearest_name(word, verbs);
      }
      throw UserError(text(what, "; ", command, " has the commands ", listed(verbs), "; see ",
                           command, " --help"));
    }
    command += " " + word;
    at = at->get_subcommand(word);
  }
}

int report_usage(const CLI::App& app, const CLI::ParseError& error) {
  if (error.get_exit_code() == 0) return app.exit(error);
  const std::string command = command_of(app);
  std::string what = error.what();
  if (dynamic_cast<const CLI::ExtrasError*>(&error) != nullptr) {
    what = "not understood: " + what.substr(what.find(": ") + 2);
  } else if (dynamic_cast<const CLI::RequiredError*>(&error) != nullptr) {
    what = "missing: " + what;
  }
  return report_failure(UserError(text(command, ": ", what, "; see ", command, " --help")));
}

}  // namespace longspan
