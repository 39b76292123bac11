// A rendezvous in a folder, for tests: a file for each key.
//
//   FolderRendezvous store("/tmp/job");
//
// Files appear whole: they are written beside and renamed. All processes on one host.
#pragma once

#include <chrono>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>
#include <thread>

#include "base/error.h"
#include "comm/rendezvous.h"

namespace longspan {

class FolderRendezvous final : public RendezvousStore {
 public:
  explicit FolderRendezvous(std::filesystem::path folder) : folder_(std::move(folder)) {}

  void set(const std::string& key, const std::string& value) override {
    const std::filesystem::path file = file_of(key);
    const std::filesystem::path beside = file.string() + ".part";
    std::ofstream(beside) << value;
    std::filesystem::rename(beside, file);
  }
  std::string get(const std::string& key) override {
    const std::filesystem::path file = file_of(key);
    for (int tries = 0; tries < 60'000; ++tries) {
      if (std::filesystem::exists(file)) {
        std::ifstream in(file);
        return {std::istreambuf_iterator<char>(in), {}};
      }
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
    throw UserError(text("nobody set '", key, "'"));
  }
  std::string own_address() const override { return "127.0.0.1"; }

 private:
  std::filesystem::path file_of(std::string key) const {
    for (char& letter : key) {
      if (letter == '/' || letter == ' ') letter = '_';
    }
    return folder_ / key;
  }

  const std::filesystem::path folder_;
};

}  // namespace longspan
