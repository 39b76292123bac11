#include "formats/safetensors_writer.h"

#include <algorithm>
#include <iomanip>
#include <nlohmann/json.hpp>
#include <sstream>

#include "base/check.h"
#include "formats/json.h"

namespace longspan {

SafetensorsWriter::SafetensorsWriter(const std::filesystem::path& path,
                                     std::vector<TensorDescription> tensors,
                                     const SafetensorsMetadata& metadata)
    : tensors_(std::move(tensors)), file_(path) {
  file_.write(format_safetensors_header(tensors_, metadata));
  skip_empty();
}

void SafetensorsWriter::write(const std::string& name, std::span<const std::byte> bytes) {
  if (bytes.empty()) return;
  LONGSPAN_CHECK(!is_complete() && tensors_[next_].name == name, "got bytes of '", name,
                 "', expected those of '", is_complete() ? "nothing" : tensors_[next_].name, "'");
  written_bytes_ += static_cast<int64_t>(bytes.size());
  const int64_t wanted_bytes = byte_count(tensors_[next_]);
  LONGSPAN_CHECK(written_bytes_ <= wanted_bytes, "tensor '", name, "' has ", wanted_bytes,
                 " bytes, got ", written_bytes_);
  file_.write(bytes);
  if (written_bytes_ < wanted_bytes) return;
  ++next_;
  written_bytes_ = 0;
  skip_empty();
}

void SafetensorsWriter::skip_empty() {
  while (next_ < tensors_.size() && byte_count(tensors_[next_]) == 0) ++next_;
}

void SafetensorsWriter::seal() {
  LONGSPAN_CHECK(is_complete(), file_.path().string(), ": tensor '", tensors_[next_].name,
                 "' is not complete");
  file_.seal();
}

void SafetensorsWriter::publish() {
  seal();
  file_.publish();
}

SafetensorsFolderWriter::SafetensorsFolderWriter(const std::filesystem::path& folder,
                                                 const std::vector<TensorDescription>& tensors,
                                                 const SafetensorsMetadata& metadata,
                                                 int64_t max_shard_bytes)
    : folder_(folder), metadata_(metadata) {
  LONGSPAN_CHECK(max_shard_bytes >= 1, "max_shard_bytes ", max_shard_bytes);
  std::error_code failure;
  std::filesystem::create_directories(folder, failure);
  if (failure) throw UserError(text("cannot make ", folder.string(), ": ", failure.message()));
  for (const auto& entry : std::filesystem::directory_iterator(folder)) {
    const std::string name = entry.path().filename().string();
    if (name.ends_with(".safetensors") || name.ends_with(".safetensors.index.json")) {
      throw UserError(
          text(folder.string(), ": already holds ", name, "; remove it or choose another folder"));
    }
  }
  plan_shards(tensors, max_shard_bytes);
  open_next_shard();
}

void SafetensorsFolderWriter::plan_shards(const std::vector<TensorDescription>& tensors,
                                          int64_t max_shard_bytes) {
  shards_.emplace_back();
  int64_t shard_bytes = 0;
  for (const TensorDescription& tensor : tensors) {
    const int64_t bytes = byte_count(tensor);
    if (!shards_.back().tensors.empty() && bytes > max_shard_bytes - shard_bytes) {
      shards_.emplace_back();
      shard_bytes = 0;
    }
    shards_.back().tensors.push_back(tensor);
    shard_bytes += bytes;
  }
  if (shards_.size() == 1) {
    shards_[0].file_name = "model.safetensors";
    return;
  }
  for (size_t idx = 0; idx < shards_.size(); ++idx) {
    std::ostringstream name;
    name << std::setfill('0') << "model-" << std::setw(5) << idx + 1 << "-of-" << std::setw(5)
         << shards_.size() << ".safetensors";
    shards_[idx].file_name = name.str();
  }
}

void SafetensorsFolderWriter::open_next_shard() {
  const Shard& shard = shards_[writers_.size()];
  writers_.push_back(
      std::make_unique<SafetensorsWriter>(folder_ / shard.file_name, shard.tensors, metadata_));
}

void SafetensorsFolderWriter::write(const std::string& name, std::span<const std::byte> bytes) {
  if (bytes.empty()) return;
  while (writers_.back()->is_complete() && writers_.size() < shards_.size()) {
    writers_.back()->seal();  // one descriptor at a time
    open_next_shard();
  }
  writers_.back()->write(name, bytes);
}

void SafetensorsFolderWriter::finish() {
  while (writers_.size() < shards_.size()) {  // shards of tensors without elements
    writers_.back()->seal();
    open_next_shard();
  }
  writers_.back()->seal();
  std::optional<AtomicFile> index;
  if (shards_.size() > 1) {
    index.emplace(folder_ / "model.safetensors.index.json");
    index->write(index_text());
    index->seal();
  }
  for (const auto& writer : writers_) writer->publish();
  if (index) index->publish();
}

std::string SafetensorsFolderWriter::index_text() const {
  int64_t total_bytes = 0;
  nlohmann::json weight_map = nlohmann::json::object();
  for (const Shard& shard : shards_) {
    for (const TensorDescription& tensor : shard.tensors) {
      total_bytes += byte_count(tensor);
      weight_map[tensor.name] = shard.file_name;
    }
  }
  const nlohmann::json index = {{"metadata", {{"total_size", total_bytes}}},
                                {"weight_map", std::move(weight_map)}};
  return index.dump(2) + "\n";
}

}  // namespace longspan
