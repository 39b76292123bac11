#include "checkpoint/train_state.h"

#include <zlib.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <functional>
#include <iomanip>
#include <nlohmann/json.hpp>
#include <numeric>
#include <optional>
#include <sstream>

#include "base/check.h"
#include "base/narrow.h"
#include "checkpoint/agreement.h"
#include "checkpoint/publish_folder.h"
#include "checkpoint/step_folder.h"
#include "formats/safetensors_writer.h"
#include "spec/hf_config.h"

namespace longspan {
namespace {

uint32_t crc32_of(std::span<const std::byte> bytes) {
  return narrow<uint32_t>(
      ::crc32_z(0, reinterpret_cast<const unsigned char*>(bytes.data()), bytes.size()));
}

std::string rank_file_name(int rank, int ranks) {
  std::ostringstream name;
  name << std::setfill('0') << "rank-" << std::setw(5) << rank << "-of-" << std::setw(5) << ranks
       << ".safetensors";
  return name.str();
}

StoredDtype dtype_of(const RealSpan& values) {
  return std::holds_alternative<std::span<double>>(values) ? StoredDtype::kF64 : StoredDtype::kF32;
}

// What a rank tells the others of its part of an array.
struct OwnedPart {
  int64_t begin = 0;
  int64_t end = 0;
  int64_t crc32 = 0;
};

// Writes this rank's file, if it owns anything, and fills `parts`.
void write_rank_file(const std::filesystem::path& folder, int rank, int ranks,
                     const std::vector<StateArray>& arrays, std::vector<OwnedPart>& parts) {
  if (!std::filesystem::is_directory(folder)) {
    throw UserError(text(folder.string(),
                         " is not visible here; output.folder must lie on a file "
                         "system that all hosts of the run share"));
  }
  std::vector<TensorDescription> tensors;
  for (const StateArray& array : arrays) {
    LONGSPAN_CHECK(element_count(array.values) == array.owned.size(), array.name, ": ",
                   element_count(array.values), " values of ", array.owned);
    parts.push_back({array.owned.begin, array.owned.end, 0});
    if (array.owned.empty()) continue;
    tensors.push_back({array.name, dtype_of(array.values), {array.owned.size()}});
    parts.back().crc32 = crc32_of(bytes_of(array.values));
  }
  if (tensors.empty()) return;
  SafetensorsWriter writer(folder / rank_file_name(rank, ranks), tensors);
  for (const StateArray& array : arrays) writer.write(array.name, bytes_of(array.values));
  writer.finish();
}

// `parts` holds those of rank 0, then those of rank 1, and so on.
std::vector<ArrayRecord> array_records(const std::vector<StateArray>& arrays,
                                       const std::vector<OwnedPart>& parts, int ranks) {
  std::vector<ArrayRecord> records;
  for (size_t i = 0; i < arrays.size(); ++i) {
    ArrayRecord record{.name = arrays[i].name,
                       .dtype = dtype_of(arrays[i].values),
                       .elements = arrays[i].elements};
    for (int rank = 0; rank < ranks; ++rank) {
      const OwnedPart& part = parts[static_cast<size_t>(rank) * arrays.size() + i];
      if (part.begin == part.end) continue;
      record.shards.push_back(
          {rank_file_name(rank, ranks), {part.begin, part.end}, narrow<uint32_t>(part.crc32)});
    }
    std::sort(record.shards.begin(), record.shards.end(),
              [](const ShardRecord& a, const ShardRecord& b) {
                return a.elements.begin < b.elements.begin;
              });
    records.push_back(std::move(record));
  }
  return records;
}

void write_attached(const std::filesystem::path& folder, const std::vector<AttachedFile>& files) {
  for (const AttachedFile& file : files) {
    const std::filesystem::path path = folder / file.name;
    make_folder(path.parent_path());
    write_text_atomic(path, file.content);
  }
}

// The three parts of a save: the folder, every rank's file, and what makes it a checkpoint.
void write_checkpoint(Communicator& comm, const std::filesystem::path& run_folder,
                      const SaveRequest& request, const std::string& op) {
  const int64_t step = request.progress.step;
  const bool is_first = comm.rank() == 0;
  std::optional<StepFolder> folder;  // rank 0's; its destructor takes a failed save away
  agree(comm, op, [&] {
    if (is_first) folder.emplace(run_folder, step);
  });
  std::vector<OwnedPart> parts;
  agree(comm, op, [&] {
    write_rank_file(partial_step_path(run_folder, step), comm.rank(), comm.size(), request.arrays,
                    parts);
  });
  std::vector<OwnedPart> all_parts(parts.size() * static_cast<size_t>(comm.size()));
  comm.all_gather(std::as_bytes(std::span(parts)), std::as_writable_bytes(std::span(all_parts)),
                  op);
  agree(comm, op, [&] {
    if (!is_first) return;
    const Manifest manifest{.progress = request.progress,
                            .run = request.run,
                            .parameters = request.parameters,
                            .arrays = array_records(request.arrays, all_parts, comm.size())};
    const Json json = manifest_json(manifest);
    // A save that could not be loaded is found here, before older checkpoints go.
    parse_manifest(json, (folder->path() / "manifest.json").string());
    write_attached(folder->path(), request.files);
    write_json_atomic(folder->path() / "manifest.json", json);
    folder->publish();
    if (request.keep_latest > 0) keep_latest_steps(run_folder, request.keep_latest);
  });
}

}  // namespace

std::filesystem::path save_train_state(Communicator& comm, const std::filesystem::path& run_folder,
                                       const SaveRequest& request) {
  const int64_t step = request.progress.step;
  const std::string op = text("save checkpoint of step ", step);
  std::array<std::byte, 1> exists = {std::byte{is_complete_step(run_folder, step)}};
  comm.broadcast(0, exists, op);
  if (exists[0] == std::byte{0}) {
    try {
      write_checkpoint(comm, run_folder, request, op);
    } catch (const UserError& error) {
      throw UserError(text("cannot ", op, ": ", error.what(),
                           "; nothing of it stays, earlier checkpoints are as they were"));
    }
  }
  return step_path(run_folder, step);
}

SavedState::SavedState(const std::filesystem::path& step_folder)
    : folder_(step_folder), manifest_(read_manifest(step_folder)) {
  for (size_t i = 0; i < manifest_.arrays.size(); ++i) arrays_[manifest_.arrays[i].name] = i;
  for (size_t i = 0; i < manifest_.parameters.size(); ++i) {
    parameters_[manifest_.parameters[i].name] = i;
  }
}

void SavedState::check_model(const std::vector<Parameter>& parameters, bool float64) const {
  const std::string origin = (folder_ / "manifest.json").string();
  for (const Parameter& parameter : parameters) {
    const ParameterRecord* saved = find_parameter(parameter.name);
    if (saved != nullptr && saved->shape == parameter.shape) continue;
    throw UserError(text(origin, ": the checkpoint is of another model: the model's parameter '",
                         parameter.name,
                         saved == nullptr ? "' is not in it" : "' has another shape in it",
                         "; choose the model that was saved, or another output.folder"));
  }
  if (parameters.size() != manifest_.parameters.size()) {
    throw UserError(text(origin, ": the checkpoint is of another model: it has ",
                         manifest_.parameters.size(), " parameters, the model ",
                         parameters.size()));
  }
  check_arrays(float64 ? StoredDtype::kF64 : StoredDtype::kF32);
}

// The arrays of each unit hold its parameters, one after the other, and nothing else.
void SavedState::check_arrays(StoredDtype dtype) const {
  const std::string origin = (folder_ / "manifest.json").string();
  const std::vector<ParameterRecord>& records = manifest_.parameters;
  int64_t elements = 0;
  for (size_t i = 0; i < records.size(); ++i) {
    if (i > 0 && records[i - 1].unit != records[i].unit) elements = 0;
    const bool in_order = records[i].begin == elements;
    elements += std::accumulate(records[i].shape.begin(), records[i].shape.end(), int64_t{1},
                                std::multiplies<>());
    if (!in_order) {
      throw UserError(text(origin, ": '", records[i].name,
                           "' does not lie behind the parameter before it; the file was changed"));
    }
    if (i + 1 < records.size() && records[i + 1].unit == records[i].unit) continue;
    for (const char* kind : kStateKinds) {
      const ArrayRecord& array = find(state_array_name(records[i].unit, kind));
      if (array.elements != elements) {
        throw UserError(text(origin, ": ", array.name, " has ", array.elements, " elements, its ",
                             "parameters have ", elements, "; the file was changed"));
      }
      if (array.dtype != dtype) {
        throw UserError(text(origin, ": the state is ", dtype_name(array.dtype), ", the run's is ",
                             dtype_name(dtype), "; set model.dtype as it was when it was saved"));
      }
    }
  }
}

void SavedState::check_spec(const ModelSpec& spec) const {
  const std::filesystem::path saved = folder_ / "model";
  const std::string difference = first_difference(load_hf_config(saved), spec);
  if (difference.empty()) return;
  throw UserError(text((saved / "config.json").string(),
                       ": the checkpoint is of another model: ", difference,
                       "; choose the model that was saved, or export the checkpoint and start "
                       "another run from its weights"));
}

const ArrayRecord& SavedState::find(const std::string& array) const {
  const auto found = arrays_.find(array);
  if (found != arrays_.end()) return manifest_.arrays[found->second];
  throw UserError(text((folder_ / "manifest.json").string(), ": has no array '", array, "'"));
}

const ParameterRecord* SavedState::find_parameter(const std::string& name) const {
  const auto found = parameters_.find(name);
  return found == parameters_.end() ? nullptr : &manifest_.parameters[found->second];
}

std::span<const std::byte> SavedState::checked_bytes(const ArrayRecord& array,
                                                     const ShardRecord& shard) {
  std::unique_ptr<SafetensorsFile>& file = files_[shard.file];
  if (!file) file = std::make_unique<SafetensorsFile>(folder_ / shard.file);
  const std::string path = file->path().string();
  const TensorView tensor = file->tensor(array.name);
  if (tensor.description.dtype != array.dtype ||
      tensor.description.shape != std::vector<int64_t>{shard.elements.size()}) {
    throw UserError(text(path, ": '", array.name,
                         "' has not the size and dtype that manifest.json states; the checkpoint "
                         "is damaged, resume from another one"));
  }
  if (checked_.emplace(array.name, shard.elements.begin).second &&
      crc32_of(tensor.bytes) != shard.crc32) {
    throw UserError(text(path, ": '", array.name,
                         "' does not match its checksum in manifest.json; the file is damaged. "
                         "Resume from another checkpoint: remove ",
                         folder_.string(), " to fall back to the one before it"));
  }
  return tensor.bytes;
}

void SavedState::read(const std::string& array, Range elements, const RealSpan& destination) {
  const ArrayRecord& record = find(array);
  if (elements.empty() && element_count(destination) == 0) return;
  LONGSPAN_CHECK(
      elements.size() == element_count(destination) && Range(0, record.elements).contains(elements),
      array, ": range ", elements, " of ", record.elements, " into ", element_count(destination));
  LONGSPAN_CHECK(record.dtype == dtype_of(destination), array, " is ", dtype_name(record.dtype));
  const int64_t width_bytes = dtype_bytes(record.dtype);
  for (const ShardRecord& shard : record.shards) {
    const Range part = intersect(shard.elements, elements);
    if (part.empty()) continue;
    const std::span<const std::byte> bytes = checked_bytes(record, shard);
    const Range to = shift(part, -elements.begin);
    std::memcpy(bytes_of(destination).data() + to.begin * width_bytes,
                bytes.data() + (part.begin - shard.elements.begin) * width_bytes,
                static_cast<size_t>(part.size() * width_bytes));
  }
}

void SavedState::read_parameter(const std::string& name, const std::string& kind, Range elements,
                                const RealSpan& destination) {
  const ParameterRecord* saved = find_parameter(name);
  LONGSPAN_CHECK(saved != nullptr, name, " is read before the model was checked");
  read(state_array_name(saved->unit, kind), shift(elements, saved->begin), destination);
}

}  // namespace longspan
