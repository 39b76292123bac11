// write_config_docs PATH: writes the page of configuration keys (docs/configuration.md).
#include <fstream>
#include <iostream>

#include "config/config_docs.h"

int main(int argc, char** argv) {
  if (argc != 2) {
    std::cerr << "usage: write_config_docs docs/configuration.md\n";
    return 2;
  }
  std::ofstream file(argv[1], std::ios::binary);
  file << longspan::config_docs();
  file.close();
  if (!file) {
    std::cerr << "cannot write " << argv[1] << '\n';
    return 2;
  }
  return 0;
}
