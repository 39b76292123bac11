// Tensors of a safetensors file, or of a model folder of several, read in place.
//
//   const SafetensorsSet model("models/tiny");             // folder or file
//   const TensorView weight = model.tensor("lm_head.weight");   // dtype, shape, bytes
//
// A folder holds model.safetensors, or model.safetensors.index.json with its shards. Files are
// mapped: opening reads headers only, and a rank that copies its slice touches no more than that.
// Everything wrong with a file is a UserError naming file and tensor, raised on opening; only
// asking for a tensor that is not there comes later.
//
// Views live as long as the object they came from. Bytes may start at any address (a 1-byte tensor
// may precede a float), so copy them. Immutable after construction: any number of threads.
#pragma once

#include <filesystem>
#include <map>
#include <string>
#include <vector>

#include "formats/mapped_file.h"
#include "formats/safetensors_header.h"

namespace longspan {

// Whether a model folder holds weights in one of these two forms.
bool has_weights(const std::filesystem::path& folder);

struct TensorView {
  const TensorDescription& description;
  std::span<const std::byte> bytes;
};

class SafetensorsFile {
 public:
  explicit SafetensorsFile(const std::filesystem::path& path);

  const std::vector<TensorDescription>& tensors() const { return header_.tensors; }
  const SafetensorsMetadata& metadata() const { return header_.metadata; }
  const std::filesystem::path& path() const { return file_.path(); }
  bool contains(const std::string& name) const { return positions_.contains(name); }
  TensorView tensor(const std::string& name) const;

 private:
  MappedFile file_;
  SafetensorsHeader header_;
  std::map<std::string, size_t> positions_;
};

class SafetensorsSet {
 public:
  explicit SafetensorsSet(const std::filesystem::path& folder_or_file);

  // File by file, in the order of the data: a writer that repeats it writes the same files.
  const std::vector<std::string>& names() const { return names_; }
  const std::vector<SafetensorsFile>& files() const { return files_; }
  bool contains(const std::string& name) const { return file_of_.contains(name); }
  TensorView tensor(const std::string& name) const;

 private:
  void open_shards(const std::filesystem::path& index_path);
  void add_file(const std::filesystem::path& path);

  std::filesystem::path path_;
  std::vector<SafetensorsFile> files_;
  std::vector<std::string> names_;
  std::map<std::string, size_t> file_of_;
};

}  // namespace longspan
