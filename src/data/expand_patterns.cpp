#include "data/expand_patterns.h"

#include <glob.h>

#include <algorithm>
#include <set>

#include "base/error.h"
#include "formats/megatron_shard.h"

namespace longspan {
namespace {

std::filesystem::path index_of(const std::filesystem::path& path) {
  return with_suffix(megatron_prefix(path), ".idx");
}

// A file that only says something of another one beside it.
bool is_sidecar(const std::filesystem::path& path) {
  const std::filesystem::path suffix = path.extension();
  const std::filesystem::path of = path.parent_path() / path.stem();
  if (suffix == ".fai" || suffix == ".gzi") return std::filesystem::exists(of);
  return (suffix == ".weights" || suffix == ".names") && std::filesystem::exists(index_of(of));
}

std::vector<std::filesystem::path> glob_files(const std::string& pattern) {
  ::glob_t found{};
  const int result =
      ::glob(pattern.c_str(), GLOB_BRACE | GLOB_TILDE | GLOB_NOSORT, nullptr, &found);
  std::vector<std::filesystem::path> paths(found.gl_pathv, found.gl_pathv + found.gl_pathc);
  ::globfree(&found);
  if (result != 0 && result != GLOB_NOMATCH) {
    throw UserError(text(pattern, ": the folders of this pattern cannot be read"));
  }
  std::sort(paths.begin(), paths.end());
  return paths;
}

// Like a glob `*`: hidden files are left out, and folders below are not entered.
std::vector<std::filesystem::path> folder_files(const std::filesystem::path& folder) {
  std::vector<std::filesystem::path> paths;
  std::error_code error;
  for (std::filesystem::directory_iterator at(folder, error), end; !error && at != end;
       at.increment(error)) {
    const bool is_hidden = at->path().filename().string().starts_with('.');
    if (!is_hidden && at->is_regular_file() && !is_sidecar(at->path())) paths.push_back(at->path());
  }
  if (error) throw UserError(text(folder.string(), ": cannot be read: ", error.message()));
  if (paths.empty()) {
    throw UserError(text(folder.string(),
                         ": no file in this folder; folders below it are not entered, name them"));
  }
  std::sort(paths.begin(), paths.end());
  return paths;
}

[[noreturn]] void fail_missing(const std::string& pattern) {
  std::error_code ignored;
  const std::string here = std::filesystem::current_path(ignored).string();
  throw UserError(text(pattern, ": no such file; give files, folders or globs that exist",
                       std::filesystem::path(pattern).is_absolute()
                           ? ""
                           : "; relative ones begin at the current directory, " + here));
}

std::vector<std::filesystem::path> expand_one(const std::string& pattern) {
  if (std::filesystem::is_directory(pattern)) return folder_files(pattern);
  // A file may have a name that looks like a pattern.
  if (std::filesystem::exists(pattern)) return {pattern};
  if (std::filesystem::exists(with_suffix(pattern, ".idx"))) return {with_suffix(pattern, ".idx")};
  if (pattern.find("**") != std::string::npos) {
    throw UserError(text(pattern,
                         ": '**' is not supported; give one pattern for each depth of "
                         "folders"));
  }
  std::vector<std::filesystem::path> paths = glob_files(pattern);
  std::erase_if(paths, [](const auto& path) {
    return is_sidecar(path) || std::filesystem::is_directory(path);
  });
  if (paths.empty()) fail_missing(pattern);
  return paths;
}

}  // namespace

bool is_shard_path(const std::filesystem::path& path) {
  return path.extension() == ".idx" || path.extension() == ".bin";
}

std::vector<std::filesystem::path> expand_patterns(const std::vector<std::string>& patterns) {
  if (patterns.empty())
    throw UserError("no documents are named; give at least one path or pattern");
  std::vector<std::filesystem::path> files;
  std::set<std::filesystem::path> seen;
  for (const std::string& pattern : patterns) {
    std::set<std::filesystem::path> seen_here;
    for (const std::filesystem::path& path : expand_one(pattern)) {
      const std::filesystem::path file = is_shard_path(path) ? index_of(path) : path;
      if (!seen_here.insert(file).second) continue;  // the other file of a shard
      if (!seen.insert(file.lexically_normal()).second) {
        throw UserError(text(pattern, ": ", file.string(), " is named by an earlier pattern too"));
      }
      files.push_back(file);
    }
  }
  return files;
}

}  // namespace longspan
