#include "config/config_docs.h"

#include "base/error.h"
#include "config/keys.h"

namespace longspan {
namespace {

constexpr const char* kIntroduction =
    "# Configuration\n"
    "\n"
    "<!-- Written by write_config_docs from src/config/keys.cpp. Do not edit by hand. -->\n"
    "\n"
    "A run is one TOML file. Every key can be overridden on the command line:\n"
    "\n"
    "    longspan train run.toml --batch.micro_batch_tokens=131072 --data.train='docs/*.txt'\n"
    "\n"
    "- An unknown key, a wrong type, a value out of range, a contradiction or an option without\n"
    "  effect is an error that names the file and line, or the override.\n"
    "- `\"auto\"` is replaced by the choice in its row; `--print-config` shows every value with\n"
    "  where it came from, and for `auto` the reason. What it prints is valid TOML.\n"
    "- The resolved configuration is saved in the output folder and in every checkpoint. Only\n"
    "  `layout.threads_per_rank` stays `\"auto\"` there, so that the saved text and its hash are\n"
    "  the same on every machine.\n"
    "- Relative paths are relative to the current directory, not to the file.\n"
    "- No environment variable changes a run, except those by which a launcher tells ranks "
    "apart.\n";

// A vertical bar would end a table cell.
std::string cell(const std::string& content) {
  std::string result;
  for (const char letter : content) {
    if (letter == '|') result += '\\';
    result += letter;
  }
  return result;
}

std::string allowed_text(const ConfigKey& key) {
  std::string result;
  for (const std::string& choice : key.choices) {
    result += (result.empty() ? "`" : ", `") + toml_quoted(choice) + "`";
  }
  result += key.bounds.describe();
  if (key.length >= 0) result = text(key.length, " values", result.empty() ? "" : ", ", result);
  if (key.automatic) result += text(result.empty() ? "" : ", ", "`\"auto\"`");
  return result;
}

std::string row(const ConfigKey& key, const std::string& leaf) {
  std::string meaning = key.doc;
  if (key.automatic) meaning += " Auto: " + key.automatic_doc + ".";
  const std::string type = key.unit.empty() ? key.type_name() : key.type_name() + ", " + key.unit;
  return text("| `", leaf, "` | ", type, " | `", cell(key.default_text()), "` | ",
              cell(allowed_text(key)), " | ", cell(meaning), " |\n");
}

}  // namespace

std::string config_docs() {
  std::string page = kIntroduction;
  std::string section;
  for (const ConfigKey& key : config_keys()) {
    const size_t point = key.name.rfind('.');
    if (key.name.substr(0, point) != section) {
      section = key.name.substr(0, point);
      page += "\n## [" + section + "]\n\n| key | type | default | allowed | meaning |\n" +
              "|---|---|---|---|---|\n";
    }
    page += row(key, key.name.substr(point + 1));
  }
  return page;
}

}  // namespace longspan
