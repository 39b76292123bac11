#include "checkpoint/manifest.h"

#include <algorithm>
#include <charconv>
#include <iomanip>
#include <nlohmann/json.hpp>
#include <sstream>

#include "base/error.h"
#include "base/random.h"
#include "formats/json_fault.h"

namespace longspan {
namespace {

constexpr const char* kFormat = "longspan checkpoint";
constexpr int64_t kFormatVersion = 1;

// 64-bit numbers as text: many JSON readers hold numbers as doubles.
std::string hex_text(uint64_t value) {
  std::ostringstream out;
  out << std::hex << std::setfill('0') << std::setw(16) << value;
  return out.str();
}

uint64_t parse_hex(const std::string& digits, const std::string& origin) {
  uint64_t value = 0;
  const char* end = digits.data() + digits.size();
  const auto [stop, error] = std::from_chars(digits.data(), end, value, 16);
  if (error != std::errc() || stop != end) {
    throw UserError(text(origin, ": '", digits, "' is not a hexadecimal number"));
  }
  return value;
}

int64_t parse_count(const Json& json, const char* key, const std::string& origin) {
  const auto count = json.at(key).get<int64_t>();
  if (count < 0) throw UserError(text(origin, ": ", key, " is ", count, ", below 0"));
  return count;
}

Json progress_json(const TrainProgress& progress) {
  Json files = Json::array();
  for (const FileFingerprint& file : progress.data_files) {
    files.push_back(
        {{"path", file.path}, {"bytes", file.bytes}, {"sample_hash", hex_text(file.sample_hash)}});
  }
  return {{"step", progress.step},
          {"updates", progress.updates},
          {"tokens_seen", progress.tokens_seen},
          {"documents_seen", progress.documents_seen},
          {"data_cursor",
           {{"epoch", progress.cursor.epoch}, {"micro_batch", progress.cursor.micro_batch}}},
          {"data_files", std::move(files)}};
}

TrainProgress parse_progress(const Json& json, const std::string& origin) {
  TrainProgress progress;
  progress.step = parse_count(json, "step", origin);
  progress.updates = parse_count(json, "updates", origin);
  progress.tokens_seen = parse_count(json, "tokens_seen", origin);
  progress.documents_seen = parse_count(json, "documents_seen", origin);
  progress.cursor.epoch = parse_count(json.at("data_cursor"), "epoch", origin);
  progress.cursor.micro_batch = parse_count(json.at("data_cursor"), "micro_batch", origin);
  for (const Json& file : json.at("data_files")) {
    progress.data_files.push_back({file.at("path").get<std::string>(),
                                   file.at("bytes").get<int64_t>(),
                                   parse_hex(file.at("sample_hash").get<std::string>(), origin)});
  }
  return progress;
}

Json run_json(const RunDescription& run) {
  return {{"engine", {{"version", run.engine_version}, {"commit", run.engine_commit}}},
          {"mesh", {{"ranks", run.ranks}, {"shard_group", run.shard_group}}},
          {"attention_profile", run.attention_profile},
          {"config_hash", hex_text(hash_bytes(run.config_toml))},
          {"config_toml", run.config_toml}};
}

RunDescription parse_run(const Json& json, const std::string& origin) {
  RunDescription run;
  run.engine_version = json.at("engine").at("version").get<std::string>();
  run.engine_commit = json.at("engine").at("commit").get<std::string>();
  run.ranks = json.at("mesh").at("ranks").get<int64_t>();
  run.shard_group = json.at("mesh").at("shard_group").get<int64_t>();
  run.attention_profile = json.at("attention_profile").get<std::string>();
  run.config_toml = json.at("config_toml").get<std::string>();
  if (parse_hex(json.at("config_hash").get<std::string>(), origin) != hash_bytes(run.config_toml)) {
    throw UserError(text(origin, ": config_toml does not match config_hash; the file was changed"));
  }
  return run;
}

Json array_json(const ArrayRecord& array) {
  Json shards = Json::array();
  for (const ShardRecord& shard : array.shards) {
    shards.push_back({{"file", shard.file},
                      {"begin", shard.elements.begin},
                      {"end", shard.elements.end},
                      {"crc32", shard.crc32}});
  }
  return {{"name", array.name},
          {"dtype", std::string(dtype_name(array.dtype))},
          {"elements", array.elements},
          {"shards", std::move(shards)}};
}

void check_cover(const ArrayRecord& array, const std::string& origin) {
  int64_t covered = 0;
  for (const ShardRecord& shard : array.shards) {
    if (shard.elements.begin != covered || shard.elements.empty()) {
      throw UserError(text(origin, ": the shards of ", array.name,
                           " do not cover it exactly once; at element ", covered, " stands ",
                           shard.elements, " of ", shard.file));
    }
    covered = shard.elements.end;
  }
  if (covered != array.elements) {
    throw UserError(text(origin, ": the shards of ", array.name, " hold ", covered, " of its ",
                         array.elements, " elements"));
  }
}

ArrayRecord parse_array(const Json& json, const std::string& origin) {
  ArrayRecord array;
  array.name = json.at("name").get<std::string>();
  const auto dtype = json.at("dtype").get<std::string>();
  if (dtype != "F32" && dtype != "F64") {
    throw UserError(
        text(origin, ": ", array.name, " has the dtype '", dtype, "'; states are F32 or F64"));
  }
  array.dtype = dtype == "F64" ? StoredDtype::kF64 : StoredDtype::kF32;
  array.elements = json.at("elements").get<int64_t>();
  for (const Json& shard : json.at("shards")) {
    array.shards.push_back({shard.at("file").get<std::string>(),
                            {shard.at("begin").get<int64_t>(), shard.at("end").get<int64_t>()},
                            shard.at("crc32").get<uint32_t>()});
    // A name, not a path: a manifest reaches nothing outside of its folder.
    if (array.shards.back().file.find('/') != std::string::npos) {
      throw UserError(text(origin, ": '", array.shards.back().file, "' is not a file name"));
    }
  }
  check_cover(array, origin);
  return array;
}

}  // namespace

std::vector<ParameterRecord> parameter_records(const std::vector<Parameter>& parameters) {
  std::vector<ParameterRecord> records;
  int64_t begin = 0;
  for (const Parameter& parameter : parameters) {
    if (!records.empty() && records.back().unit != parameter.unit) begin = 0;
    records.push_back({parameter.name, parameter.shape, parameter.unit, begin});
    begin += parameter.elements();
  }
  return records;
}

std::string state_array_name(int64_t unit, const std::string& kind) {
  std::ostringstream name;
  name << "unit-" << std::setfill('0') << std::setw(4) << unit << '.' << kind;
  return name.str();
}

Json manifest_json(const Manifest& manifest) {
  Json parameters = Json::array();
  for (const ParameterRecord& parameter : manifest.parameters) {
    parameters.push_back({{"name", parameter.name},
                          {"shape", parameter.shape},
                          {"unit", parameter.unit},
                          {"begin", parameter.begin}});
  }
  Json arrays = Json::array();
  for (const ArrayRecord& array : manifest.arrays) arrays.push_back(array_json(array));
  return {{"format", kFormat},
          {"format_version", kFormatVersion},
          {"progress", progress_json(manifest.progress)},
          {"run", run_json(manifest.run)},
          {"parameters", std::move(parameters)},
          {"arrays", std::move(arrays)}};
}

Manifest parse_manifest(const Json& json, const std::string& origin) {
  try {
    if (json.at("format") != kFormat) throw UserError(text(origin, ": not a ", kFormat));
    if (json.at("format_version") != kFormatVersion) {
      throw UserError(text(origin, ": format version ", json.at("format_version").dump(),
                           ", this program reads ", kFormatVersion,
                           "; use the version of longspan that wrote it (run.engine)"));
    }
    Manifest manifest;
    manifest.progress = parse_progress(json.at("progress"), origin);
    manifest.run = parse_run(json.at("run"), origin);
    for (const Json& parameter : json.at("parameters")) {
      manifest.parameters.push_back({parameter.at("name").get<std::string>(),
                                     parameter.at("shape").get<std::vector<int64_t>>(),
                                     parameter.at("unit").get<int64_t>(),
                                     parameter.at("begin").get<int64_t>()});
    }
    for (const Json& array : json.at("arrays")) {
      manifest.arrays.push_back(parse_array(array, origin));
    }
    return manifest;
  } catch (const nlohmann::json::exception& error) {
    throw UserError(text(origin, ": not a complete manifest (", describe_json_error(error).reason,
                         "); resume from another checkpoint"));
  }
}

Manifest read_manifest(const std::filesystem::path& step_folder) {
  const std::filesystem::path path = step_folder / "manifest.json";
  return parse_manifest(read_json(path), path.string());
}

}  // namespace longspan
