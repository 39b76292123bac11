// From paths, folders and shell globs to the files they mean.
//
//   expand_patterns({"docs/*.txt", "shards/x", "more"})
//   // docs/a.txt, docs/b.txt, shards/x.idx, more/c.txt
//
// Globs are those of glob(3): * ? [...] {a,b} ~. A folder means every regular file in it, but for
// hidden ones; folders below it are not entered. Files come in the order of the patterns, and
// sorted byte by byte within one. A Megatron shard stands for its files and is listed once, as its
// .idx, whether .idx, .bin, both, or the path without suffix was given. Sidecars are not listed:
// those of a shard, and .fai and .gzi beside the file that they index. UserError: no pattern, a
// pattern or folder without a file, a file matched twice, "**". Pure functions of the file system;
// any thread.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

namespace longspan {

std::vector<std::filesystem::path> expand_patterns(const std::vector<std::string>& patterns);

// Whether a path is one of the two files of a Megatron shard, by its suffix.
bool is_shard_path(const std::filesystem::path& path);

}  // namespace longspan
