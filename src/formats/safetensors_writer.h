// Safetensors files, written tensor after tensor without holding the model in memory.
//
//   SafetensorsFolderWriter writer(folder, descriptions, {{"format", "pt"}}, max_shard_bytes);
//   for (const auto& tensor : descriptions) writer.write(tensor.name, bytes_of(tensor));
//   writer.finish();          // until here the folder shows none of the new files
//
// Tensors are declared first, because the header stands before the data, and written in that order;
// one tensor may come in several pieces. One shard gives model.safetensors, more give
// model-00001-of-000NN.safetensors and the index, each tensor in the first shard with room for it
// in declared order. The same declarations and bytes give the same files. `{"format": "pt"}` is
// what transformers asks for. Failures are UserErrors and leave nothing behind; calls in the wrong
// order are InternalErrors. An object belongs to one thread.
#pragma once

#include <filesystem>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "formats/atomic_file.h"
#include "formats/safetensors_header.h"

namespace longspan {

class SafetensorsWriter {
 public:
  SafetensorsWriter(const std::filesystem::path& path, std::vector<TensorDescription> tensors,
                    const SafetensorsMetadata& metadata = {});

  // The next bytes of tensor `name`, which must be the first that is not complete.
  void write(const std::string& name, std::span<const std::byte> bytes);
  bool is_complete() const { return next_ == tensors_.size(); }
  void seal();     // complete and on disk, under a temporary name
  void publish();  // and then visible
  void finish() { publish(); }

 private:
  void skip_empty();

  std::vector<TensorDescription> tensors_;
  AtomicFile file_;
  size_t next_ = 0;
  int64_t written_bytes_ = 0;  // of tensor next_
};

class SafetensorsFolderWriter {
 public:
  // UserError if the folder already holds a model: the old index could point to new shards.
  SafetensorsFolderWriter(const std::filesystem::path& folder,
                          const std::vector<TensorDescription>& tensors,
                          const SafetensorsMetadata& metadata, int64_t max_shard_bytes);

  void write(const std::string& name, std::span<const std::byte> bytes);
  void finish();

 private:
  struct Shard {
    std::string file_name;
    std::vector<TensorDescription> tensors;
  };

  void plan_shards(const std::vector<TensorDescription>& tensors, int64_t max_shard_bytes);
  void open_next_shard();
  std::string index_text() const;

  std::filesystem::path folder_;
  SafetensorsMetadata metadata_;
  std::vector<Shard> shards_;
  std::vector<std::unique_ptr<SafetensorsWriter>> writers_;  // of the shards begun so far
};

}  // namespace longspan
