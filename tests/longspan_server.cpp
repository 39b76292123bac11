// longspan_server: runs many longspan commands for the Python tests, each in a process of its own.
//
//   -> {"arguments": ["train", "run.toml"], "folder": ".", "environment": {"RANK": "0"},
//       "largest_file_bytes": 20000, "stdout": "out.txt", "stderr": "err.txt"}
//   <- 2
//
// Why: loading libtorch takes a third of a second, most of what a refused command costs, and the
// tests run hundreds. This process loads it once, and each command runs in a fork. One request a
// line; the answer is the exit code, or minus the signal. "environment" is added to this process's;
// a limit of 0 is none. Tests of how the program starts and ends run the program itself.
#include <fcntl.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>
#include <iostream>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "base/check.h"
#include "run_command.h"

namespace longspan {
namespace {

using Request = nlohmann::json;

// Paths of tests may hold any byte: they come as one character each.
std::string bytes_of(const std::string& latin1) {
  std::string bytes;
  for (size_t i = 0; i < latin1.size(); ++i) {
    const auto lead = static_cast<unsigned char>(latin1[i]);
    if (lead < 0x80) {
      bytes += latin1[i];
    } else {
      const auto next = static_cast<unsigned char>(latin1[++i]);
      bytes += static_cast<char>((lead & 3) << 6 | (next & 63));
    }
  }
  return bytes;
}

void redirect(int descriptor, const std::string& path) {
  const int file = ::open(path.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
  LONGSPAN_CHECK(file >= 0, path);
  LONGSPAN_CHECK(::dup2(file, descriptor) >= 0, path);
}

[[noreturn]] void run_request(const Request& request) {
  redirect(STDOUT_FILENO, bytes_of(request.at("stdout")));
  redirect(STDERR_FILENO, bytes_of(request.at("stderr")));
  LONGSPAN_CHECK(::chdir(bytes_of(request.at("folder")).c_str()) == 0, request.at("folder").dump());
  for (const auto& [name, value] : request.at("environment").items()) {
    ::setenv(name.c_str(), value.get<std::string>().c_str(), /*overwrite=*/1);
  }
  const auto largest = request.at("largest_file_bytes").get<rlim_t>();
  const ::rlimit limit{largest, largest};
  if (largest > 0) LONGSPAN_CHECK(::setrlimit(RLIMIT_FSIZE, &limit) == 0, largest);
  std::vector<std::string> words = {"longspan"};
  for (const Request& word : request.at("arguments")) words.push_back(bytes_of(word));
  std::vector<char*> argv;
  for (std::string& word : words) argv.push_back(word.data());
  argv.push_back(nullptr);
  leave(run_command(static_cast<int>(words.size()), argv.data()));
}

int answer(const Request& request) {
  const ::pid_t child = ::fork();
  LONGSPAN_CHECK(child >= 0, "fork");
  if (child == 0) run_request(request);
  int status = 0;
  while (::waitpid(child, &status, 0) < 0) {
  }
  return WIFSIGNALED(status) ? -WTERMSIG(status) : WEXITSTATUS(status);
}

}  // namespace
}  // namespace longspan

int main() {
  for (std::string line; std::getline(std::cin, line);) {
    std::cout << longspan::answer(longspan::Request::parse(line)) << std::endl;
  }
}
