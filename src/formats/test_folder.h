// A fresh folder for one test, removed with everything in it at the end of the scope.
//
//   const TestFolder folder;
//   folder.write("a.fa", ">x\nACGT\n");     // returns the path
//
// Used by tests only. An object belongs to one thread; two objects never share a folder.
#pragma once

#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <string>
#include <string_view>

#include "base/check.h"
#include "formats/json.h"

namespace longspan {

class TestFolder {
 public:
  TestFolder() {
    const std::filesystem::path parent = std::filesystem::temp_directory_path();
    // mkdtemp puts other characters in place of the last six.
    std::string name = (parent / ("longspan-test-" + std::string(6, 'X'))).string();
    LONGSPAN_CHECK(::mkdtemp(name.data()) != nullptr, std::strerror(errno));
    path_ = name;
  }
  ~TestFolder() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }
  TestFolder(const TestFolder&) = delete;
  TestFolder& operator=(const TestFolder&) = delete;

  const std::filesystem::path& path() const { return path_; }
  std::filesystem::path operator/(const std::string& name) const { return path_ / name; }

  std::filesystem::path write(const std::string& name, std::string_view content) const {
    std::filesystem::create_directories((path_ / name).parent_path());
    // Not write_text_atomic: a test may write thousands of files, and need not wait for the disk.
    std::ofstream(path_ / name, std::ios::binary) << content;
    return path_ / name;
  }

 private:
  std::filesystem::path path_;
};

}  // namespace longspan
