// TensorBoard event files, written without TensorFlow or protobuf.
//
//   EventFile events(folder / "tensorboard");
//   events.add_scalars(step, scalars(metrics));
//   EventFile events(folder / "tensorboard", /*resumed_step=*/80);   // hides older steps above 80
//
// A file events.out.tfevents.<seconds>.<host> holds records: u64 length, u32 masked CRC-32C of
// those eight bytes, payload, u32 masked CRC-32C of the payload, all little-endian; a payload is
// one Event message. Every call ends with a flush, so a killed run loses nothing that it reported.
// One thread at a time.
#pragma once

#include <cstdint>
#include <filesystem>
#include <fstream>
#include <optional>
#include <string>

#include "observe/step_metrics.h"

namespace longspan {

class EventFile {
 public:
  // Creates the folder if need be, and a new file in it. With `resumed_step`, TensorBoard drops
  // what older files of the folder say about later steps.
  explicit EventFile(const std::filesystem::path& folder,
                     std::optional<int64_t> resumed_step = std::nullopt);

  void add_scalars(int64_t step, const Scalars& values);

  const std::filesystem::path& path() const { return path_; }

 private:
  void write_record(const std::string& payload);

  std::filesystem::path path_;
  std::ofstream stream_;
};

}  // namespace longspan
