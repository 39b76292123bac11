// From paths and shell globs to the files they mean.
//
//   expand_patterns({"docs/*.txt", "shards/x"})   // docs/a.txt, docs/b.txt, shards/x.idx
//
// Globs are those of glob(3): * ? [...] {a,b} ~. Files come in the order of the patterns, and
// sorted byte by byte within one. A Megatron shard stands for its files and is listed once, as its
// .idx, whether .idx, .bin, both, or the path without suffix was given; its sidecars are not
// listed. UserError: no pattern, a pattern that matches nothing, a file matched twice, a folder,
// "**". Pure functions of the file system; any thread.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

namespace longspan {

std::vector<std::filesystem::path> expand_patterns(const std::vector<std::string>& patterns);

// Whether a path is one of the two files of a Megatron shard, by its suffix.
bool is_shard_path(const std::filesystem::path& path);

}  // namespace longspan
