#include "formats/safetensors.h"

#include <nlohmann/json.hpp>
#include <set>

#include "base/error.h"
#include "formats/json.h"
#include "formats/json_fault.h"

namespace longspan {
namespace {

constexpr const char* kSingleName = "model.safetensors";
constexpr const char* kIndexName = "model.safetensors.index.json";

std::span<const std::byte> subspan(std::span<const std::byte> bytes, const Range& range) {
  return bytes.subspan(static_cast<size_t>(range.begin), static_cast<size_t>(range.size()));
}

// name -> shard file name. The sorted JSON type: weight maps reach 10^5 names.
std::map<std::string, std::string> read_weight_map(const std::filesystem::path& path) {
  nlohmann::json index;
  try {
    index = nlohmann::json::parse(read_text(path));
  } catch (const nlohmann::json::exception& error) {
    const JsonFault fault = describe_json_error(error);
    throw UserError(text(path.string(), ":", fault.line, ": ", fault.in_line()));
  }
  if (!index.is_object() || !index.contains("weight_map") || !index["weight_map"].is_object()) {
    throw UserError(text(path.string(), ": no object 'weight_map' from tensor names to files"));
  }
  std::map<std::string, std::string> shard_of;
  for (const auto& [name, file] : index["weight_map"].items()) {
    if (!file.is_string()) {
      throw UserError(text(path.string(), ": tensor '", name, "': its file must be a string"));
    }
    const std::string file_name = file.get<std::string>();
    // An index must not reach outside its folder.
    if (file_name.empty() || std::filesystem::path(file_name).filename() != file_name) {
      throw UserError(text(path.string(), ": tensor '", name, "': '", file_name,
                           "' is not the name of a file in this folder"));
    }
    shard_of[name] = file_name;
  }
  return shard_of;
}

std::map<std::string, size_t> positions_of(const std::vector<TensorDescription>& tensors) {
  std::map<std::string, size_t> positions;
  for (size_t idx = 0; idx < tensors.size(); ++idx) positions[tensors[idx].name] = idx;
  return positions;
}

// The one file, or the index, that a path to a file or to a model folder means.
std::filesystem::path find_weights(const std::filesystem::path& path) {
  if (!std::filesystem::is_directory(path)) return path;
  const bool has_single = std::filesystem::exists(path / kSingleName);
  const bool has_index = std::filesystem::exists(path / kIndexName);
  if (has_single && has_index) {
    throw UserError(text(path.string(), ": holds both ", kSingleName, " and ", kIndexName,
                         ", which may differ; remove one of them or name the file itself"));
  }
  if (has_single) return path / kSingleName;
  if (has_index) return path / kIndexName;
  throw UserError(
      text(path.string(), ": no weights: neither ", kSingleName, " nor ", kIndexName, " is there"));
}

}  // namespace

bool has_weights(const std::filesystem::path& folder) {
  return std::filesystem::exists(folder / kSingleName) ||
         std::filesystem::exists(folder / kIndexName);
}

SafetensorsFile::SafetensorsFile(const std::filesystem::path& path)
    : file_(path),
      header_(parse_safetensors_header(file_.bytes(), path.string())),
      positions_(positions_of(header_.tensors)) {}

TensorView SafetensorsFile::tensor(const std::string& name) const {
  const auto found = positions_.find(name);
  if (found == positions_.end()) {
    throw UserError(text(path().string(), ": no tensor '", name, "'"));
  }
  return {header_.tensors[found->second], subspan(file_.bytes(), header_.spans[found->second])};
}

SafetensorsSet::SafetensorsSet(const std::filesystem::path& folder_or_file)
    : path_(folder_or_file) {
  const std::filesystem::path weights = find_weights(path_);
  if (weights.extension() == ".json") {
    open_shards(weights);
  } else {
    add_file(weights);
  }
}

TensorView SafetensorsSet::tensor(const std::string& name) const {
  const auto found = file_of_.find(name);
  if (found == file_of_.end()) throw UserError(text(path_.string(), ": no tensor '", name, "'"));
  return files_[found->second].tensor(name);
}

void SafetensorsSet::add_file(const std::filesystem::path& path) {
  files_.emplace_back(path);
  for (const TensorDescription& tensor : files_.back().tensors()) {
    const auto [position, is_new] = file_of_.emplace(tensor.name, files_.size() - 1);
    if (!is_new) {
      throw UserError(text(path.string(), ": tensor '", tensor.name, "' is also in ",
                           files_[position->second].path().string()));
    }
    names_.push_back(tensor.name);
  }
}

void SafetensorsSet::open_shards(const std::filesystem::path& index_path) {
  const std::map<std::string, std::string> shard_of = read_weight_map(index_path);
  std::set<std::string> shards;
  for (const auto& [name, shard] : shard_of) shards.insert(shard);
  for (const std::string& shard : shards) {
    const std::filesystem::path shard_path = index_path.parent_path() / shard;
    if (!std::filesystem::exists(shard_path)) {
      throw UserError(text(index_path.string(), ": shard ", shard, " is missing from the folder"));
    }
    add_file(shard_path);
  }
  for (const auto& [name, shard] : shard_of) {
    const auto found = file_of_.find(name);
    if (found == file_of_.end() || files_[found->second].path().filename() != shard) {
      throw UserError(text(index_path.string(), ": tensor '", name, "' should be in ", shard,
                           ", which does not hold it"));
    }
  }
  for (const std::string& name : names_) {
    if (!shard_of.contains(name)) {
      throw UserError(text(index_path.string(), ": tensor '", name, "' of ",
                           files_[file_of_.at(name)].path().filename().string(),
                           " is not in the weight_map; add it, or remove it from the shard"));
    }
  }
}

}  // namespace longspan
