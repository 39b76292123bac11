// write_preset_folders FOLDER: FOLDER/<preset>/config.json of every preset, and a line with its
// name and number of parameters, for the test that loads them with transformers.
#include <filesystem>
#include <iostream>

#include "formats/json.h"
#include "spec/hf_config.h"
#include "spec/parameter_table.h"
#include "spec/presets.h"

int main(int argc, char** argv) {
  if (argc != 2) {
    std::cerr << "usage: write_preset_folders FOLDER\n";
    return 2;
  }
  try {
    for (const std::string& name : longspan::preset_names()) {
      const std::filesystem::path folder = std::filesystem::path(argv[1]) / name;
      std::filesystem::create_directories(folder);
      const longspan::ModelSpec spec = longspan::preset_spec(name);
      longspan::write_text_atomic(folder / "config.json",
                                  longspan::hf_config_text(spec, "float32"));
      std::cout << name << ' ' << longspan::ParameterTable(spec).total_elements() << '\n';
    }
  } catch (const std::exception& error) {
    std::cerr << error.what() << '\n';
    return 2;
  }
  return 0;
}
