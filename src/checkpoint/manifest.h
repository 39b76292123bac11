// The page of contents of a checkpoint: manifest.json. docs/checkpoints.md describes every field.
//
//   const Manifest manifest = read_manifest("runs/a/step-120");
//   manifest.progress.cursor        // where the data stands
//   manifest.arrays                 // what is stored, in which file, with which checksum
//
// A state array is a flat array of one unit: its weights, first or second moments. Its elements are
// counted without the padding of a rank layout, so a checkpoint says nothing that depends on the
// number of ranks, except which file holds which range. Random numbers are keyed by seed and
// purpose and have no state to save.
//
// Values. read_manifest checks that the shards of each array cover it exactly once; everything
// wrong is a UserError that names the file.
#pragma once

#include <array>
#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "base/range.h"
#include "data/document_source.h"
#include "data/packer.h"
#include "formats/json.h"
#include "formats/safetensors_header.h"
#include "spec/parameter_table.h"

namespace longspan {

// How far the run has come.
struct TrainProgress {
  int64_t step = 0;     // steps done
  int64_t updates = 0;  // optimizer updates: steps without loss weight make none
  int64_t tokens_seen = 0;
  int64_t documents_seen = 0;
  DataCursor cursor;
  std::vector<FileFingerprint> data_files;

  bool operator==(const TrainProgress&) const = default;
};

// What made the checkpoint.
struct RunDescription {
  std::string config_toml;  // resolved
  std::string engine_version;
  std::string engine_commit;
  int64_t ranks = 1;
  int64_t shard_group = 1;
  std::string attention_profile;

  bool operator==(const RunDescription&) const = default;
};

struct ShardRecord {
  std::string file;  // the tensor in it has the name of the array
  Range elements;
  uint32_t crc32 = 0;  // of its bytes, as zlib computes it

  bool operator==(const ShardRecord&) const = default;
};

struct ArrayRecord {
  std::string name;
  StoredDtype dtype = StoredDtype::kF32;
  int64_t elements = 0;
  std::vector<ShardRecord> shards;  // by range

  bool operator==(const ArrayRecord&) const = default;
};

// A parameter's place: `begin` counts elements from the start of its unit's arrays.
struct ParameterRecord {
  std::string name;
  std::vector<int64_t> shape;
  int64_t unit = 0;
  int64_t begin = 0;

  bool operator==(const ParameterRecord&) const = default;
};

struct Manifest {
  TrainProgress progress;
  RunDescription run;
  std::vector<ParameterRecord> parameters;
  std::vector<ArrayRecord> arrays;

  bool operator==(const Manifest&) const = default;
};

std::vector<ParameterRecord> parameter_records(const std::vector<Parameter>& parameters);
// The arrays of each unit; state_array_name(3, "weights") is "unit-0003.weights".
constexpr std::array<const char*, 3> kStateKinds = {"weights", "first_moment", "second_moment"};
std::string state_array_name(int64_t unit, const std::string& kind);

Json manifest_json(const Manifest& manifest);
Manifest parse_manifest(const Json& json, const std::string& origin);
Manifest read_manifest(const std::filesystem::path& step_folder);

}  // namespace longspan
