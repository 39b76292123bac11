// Makes a finished folder visible in one step, durably.
//
//   publish_folder("out.partial", "out");    // sync, rename, sync of the parent
//
// The files in it are synced by whoever wrote them (formats/atomic_file.h). `to` must not be there,
// or be an empty folder. UserErrors name the path. Any thread.
#pragma once

#include <filesystem>

namespace longspan {

// Creates a folder with its parents.
void make_folder(const std::filesystem::path& folder);
void remove_folder(const std::filesystem::path& folder);
void publish_folder(const std::filesystem::path& partial, const std::filesystem::path& to);

}  // namespace longspan
