// Saving and loading the state of a run, each rank what it owns.
//
//   save_train_state(comm, run_folder, manifest, arrays, files, keep_latest);    // collective
//
//   SavedState saved(resolve_checkpoint(run_folder));
//   saved.read_parameter("model.embed_tokens.weight", "weights", range, destination);   // any
//   ranks
//
// A save writes `rank-00003-of-00008.safetensors` for each rank and manifest.json, in a step folder
// that appears whole or not at all (step_folder.h); all ranks must see the same file system.
// Nothing is staged: bytes go from the state to the file. A load takes the ranges it wants from
// whichever files hold them and checks the checksum of every shard it touches. The number of ranks
// and the shard group may differ from those of the save, and so may the units: parameters are found
// by name, so a layer's experts can be dealt out to another expert group. The bits are the same.
//
// Errors are UserErrors that name the file, the same on all ranks for a save. A SavedState belongs
// to one thread; several may read the same folder.
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "base/range.h"
#include "base/real_span.h"
#include "checkpoint/manifest.h"
#include "comm/communicator.h"
#include "formats/safetensors.h"

namespace longspan {

// One flat array, and what this rank owns of it. All ranks list the same arrays in the same order;
// what they own covers each exactly once.
struct StateArray {
  std::string name;
  int64_t elements = 0;  // of the whole array
  Range owned;           // may be empty
  RealSpan values;       // as many as owned
};

// A small text file that goes into the checkpoint beside the state: "model/config.json".
struct AttachedFile {
  std::filesystem::path name;
  std::string content;
};

struct SaveRequest {
  TrainProgress progress;
  RunDescription run;
  std::vector<ParameterRecord> parameters;
  std::vector<StateArray> arrays;
  std::vector<AttachedFile> files;
  int64_t keep_latest = 2;  // complete checkpoints that stay, this one among them; 0: all
};

// The folder of the checkpoint. A step that has a complete checkpoint is not written again.
std::filesystem::path save_train_state(Communicator& comm, const std::filesystem::path& run_folder,
                                       const SaveRequest& request);

class SavedState {
 public:
  explicit SavedState(const std::filesystem::path& step_folder);

  const std::filesystem::path& folder() const { return folder_; }
  const Manifest& manifest() const { return manifest_; }
  // UserError if the checkpoint is of another model, or of another float type.
  void check_model(const std::vector<Parameter>& parameters, bool float64) const;
  // UserError if the run's model would compute something else with these weights.
  void check_spec(const ModelSpec& spec) const;
  // Elements of an array, counted as the checkpoint's units count them.
  void read(const std::string& array, Range elements, const RealSpan& destination);
  // Elements of a parameter; `kind` is one of kStateKinds.
  void read_parameter(const std::string& name, const std::string& kind, Range elements,
                      const RealSpan& destination);

 private:
  const ArrayRecord& find(const std::string& array) const;
  const ParameterRecord* find_parameter(const std::string& name) const;  // null: not there
  void check_arrays(StoredDtype dtype) const;
  // The shard's bytes, checked the first time.
  std::span<const std::byte> checked_bytes(const ArrayRecord& array, const ShardRecord& shard);

  std::filesystem::path folder_;
  Manifest manifest_;
  std::unordered_map<std::string, size_t> arrays_;      // places in the manifest, by name
  std::unordered_map<std::string, size_t> parameters_;  // likewise
  std::map<std::string, std::unique_ptr<SafetensorsFile>> files_;
  std::set<std::pair<std::string, int64_t>> checked_;  // array, begin of the shard
};

}  // namespace longspan
