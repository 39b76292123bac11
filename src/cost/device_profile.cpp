#include "cost/device_profile.h"

#include <algorithm>
#include <initializer_list>
#include <nlohmann/json.hpp>
#include <string_view>
#include <utility>

#include "base/error.h"

namespace longspan {
namespace {

constexpr std::string_view kFormat = "longspan device profile 1";
// Far beyond any device; products of such values stay finite.
constexpr double kMaxRate = 1e24;
constexpr double kMaxSeconds = 1e6;
constexpr int64_t kMaxRows = int64_t{1} << 40;
constexpr int64_t kMaxSize = int64_t{1} << 20;

// A JSON value and its place ("profile.json: forward.causal.query_rows[2]"), for errors. Refers to
// the value.
class Reader {
 public:
  Reader(const Json& value, std::string place, std::string_view separator = ".")
      : value_(value), place_(std::move(place)), separator_(separator) {}

  [[noreturn]] void fail(const std::string& must) const {
    throw UserError(text(place_, " ", must, ", not ", shown()));
  }

  // All of the required keys, none but those and the optional ones.
  void check_keys(std::initializer_list<std::string_view> required,
                  std::initializer_list<std::string_view> optional = {}) const {
    if (!value_.is_object()) fail("must be an object");
    for (const std::string_view key : required) {
      if (!value_.contains(key)) throw UserError(text(place_, ": key \"", key, "\" is missing"));
    }
    for (const auto& [key, unused] : value_.items()) {
      const auto is_it = [&key = key](std::string_view known) { return known == key; };
      if (std::any_of(required.begin(), required.end(), is_it)) continue;
      if (std::any_of(optional.begin(), optional.end(), is_it)) continue;
      throw UserError(text(place_, ": unknown key \"", key.substr(0, 60), "\""));
    }
  }

  bool has(const std::string& key) const { return value_.contains(key); }
  Reader at(const std::string& key) const {
    return {value_.at(key), text(place_, separator_, key)};
  }

  // Elements of a list with at least one.
  std::vector<Reader> items() const {
    if (!value_.is_array() || value_.empty()) fail("must be a list of one or more");
    std::vector<Reader> readers;
    for (size_t idx = 0; idx < value_.size(); ++idx) {
      readers.emplace_back(value_[idx], text(place_, "[", idx, "]"));
    }
    return readers;
  }

  std::string string() const {
    if (!value_.is_string()) fail("must be a string");
    return value_.get<std::string>();
  }

  std::map<std::string, std::string> strings() const {
    if (!value_.is_object()) fail("must be an object");
    std::map<std::string, std::string> values;
    for (const auto& [key, unused] : value_.items()) values[key] = at(key).string();
    return values;
  }

  double number(double low, double high) const {
    if (!value_.is_number()) fail(text("must be a number from ", low, " to ", high));
    const auto number = value_.get<double>();
    if (!(number >= low && number <= high)) fail(text("must be from ", low, " to ", high));
    return number;
  }

  int64_t integer(int64_t low, int64_t high) const {
    const std::string must = text("must be a whole number from ", low, " to ", high);
    if (!value_.is_number_integer()) fail(must);
    const bool too_large =
        value_.is_number_unsigned() && value_.get<uint64_t>() > static_cast<uint64_t>(high);
    if (too_large || value_.get<int64_t>() < low || value_.get<int64_t>() > high) fail(must);
    return value_.get<int64_t>();
  }

  const std::string& place() const { return place_; }

 private:
  // Containers may be of any size and depth.
  std::string shown() const {
    return value_.is_number() ? value_.dump() : text("a value of type ", value_.type_name());
  }

  const Json& value_;
  std::string place_;
  std::string_view separator_;  // between the place and the name of a key in it
};

Json grid_json(const RateGrid& grid) {
  Json rows = Json::array();
  const size_t width = grid.key_rows().size();
  for (size_t query = 0; query < grid.query_rows().size(); ++query) {
    Json row = Json::array();
    for (size_t key = 0; key < width; ++key) row.push_back(grid.flops_per_s()[query * width + key]);
    rows.push_back(std::move(row));
  }
  return {{"query_rows", grid.query_rows()},
          {"key_rows", grid.key_rows()},
          {"flops_per_s", std::move(rows)}};
}

RateGrid read_grid(const Reader& reader) {
  reader.check_keys({"query_rows", "key_rows", "flops_per_s"});
  const auto axis = [&](const char* name) {
    std::vector<int64_t> points;
    for (const Reader& point : reader.at(name).items()) {
      points.push_back(point.integer(1, kMaxRows));
    }
    return points;
  };
  std::vector<int64_t> query_rows = axis("query_rows");
  std::vector<int64_t> key_rows = axis("key_rows");
  std::vector<double> rates;
  const Reader rows = reader.at("flops_per_s");
  if (rows.items().size() != query_rows.size()) {
    throw UserError(text(rows.place(), " holds ", rows.items().size(), " rows for ",
                         query_rows.size(), " query_rows"));
  }
  for (const Reader& row : rows.items()) {
    const std::vector<Reader> items = row.items();
    if (items.size() != key_rows.size()) {
      throw UserError(
          text(row.place(), " holds ", items.size(), " rates for ", key_rows.size(), " key_rows"));
    }
    for (const Reader& rate : items) rates.push_back(rate.number(1, kMaxRate));
  }
  try {
    return RateGrid(std::move(query_rows), std::move(key_rows), std::move(rates));
  } catch (const UserError& error) {
    throw UserError(text(reader.place(), ": ", error.what()));
  }
}

Json pass_json(const PassRates& rates) {
  return {{"causal", grid_json(rates.causal)},
          {"full", grid_json(rates.full)},
          {"task_overhead_s", rates.task_overhead_s},
          {"launch_overhead_s", rates.launch_overhead_s},
          {"row_flops_per_s", rates.row_flops_per_s}};
}

PassRates read_pass(const Reader& reader) {
  reader.check_keys({"causal", "full", "task_overhead_s", "launch_overhead_s", "row_flops_per_s"});
  return {.causal = read_grid(reader.at("causal")),
          .full = read_grid(reader.at("full")),
          .task_overhead_s = reader.at("task_overhead_s").number(0, kMaxSeconds),
          .launch_overhead_s = reader.at("launch_overhead_s").number(0, kMaxSeconds),
          .row_flops_per_s = reader.at("row_flops_per_s").number(0, kMaxRate)};
}

Json shape_json(const AttentionSizes& shape) {
  return {{"query_heads", shape.query_heads},
          {"key_heads", shape.key_heads},
          {"key_width", shape.key_width},
          {"value_width", shape.value_width},
          {"value_bytes", shape.value_bytes},
          {"accumulator_bytes", shape.accumulator_bytes},
          {"devices_per_server", shape.devices_per_server}};
}

AttentionSizes read_shape(const Reader& reader) {
  reader.check_keys({"query_heads", "key_heads", "key_width", "value_width", "value_bytes",
                     "accumulator_bytes", "devices_per_server"});
  const auto size = [&](const char* name) { return reader.at(name).integer(1, kMaxSize); };
  const AttentionSizes shape{.query_heads = size("query_heads"),
                             .key_heads = size("key_heads"),
                             .key_width = size("key_width"),
                             .value_width = size("value_width"),
                             .value_bytes = size("value_bytes"),
                             .accumulator_bytes = size("accumulator_bytes"),
                             .devices_per_server = size("devices_per_server")};
  if (shape.query_heads % shape.key_heads != 0) {
    reader.at("query_heads").fail(text("must be a multiple of key_heads, ", shape.key_heads));
  }
  return shape;
}

Json link_json(const LinkClass& link) {
  return {{"bytes_per_s", link.bytes_per_s},
          {"latency_s", link.latency_s},
          {"message_overhead_s", link.message_overhead_s}};
}

LinkClass read_link(const Reader& reader) {
  reader.check_keys({"bytes_per_s", "latency_s", "message_overhead_s"});
  return {.bytes_per_s = reader.at("bytes_per_s").number(1, kMaxRate),
          .latency_s = reader.at("latency_s").number(0, kMaxSeconds),
          .message_overhead_s = reader.at("message_overhead_s").number(0, kMaxSeconds)};
}

}  // namespace

Json to_json(const DeviceProfile& profile) {
  Json json = {{"format", kFormat},
               {"name", profile.name},
               {"source", profile.source},
               {"versions", profile.versions},
               {"shape", shape_json(profile.shape)},
               {"forward", pass_json(profile.forward)},
               {"backward", pass_json(profile.backward)},
               {"matrix_flops_per_s", profile.matrix_flops_per_s},
               {"spread", profile.spread}};
  if (profile.link) json["link"] = link_json(*profile.link);
  return json;
}

DeviceProfile device_profile_from_json(const Json& json, const std::string& origin) {
  const Reader reader(json, origin, ": ");
  reader.check_keys({"format", "name", "source", "versions", "shape", "forward", "backward",
                     "matrix_flops_per_s", "spread"},
                    {"link"});
  if (reader.at("format").string() != kFormat) {
    throw UserError(text(origin, ": format must be \"", kFormat,
                         "\"; measure the machine again with longspan profile"));
  }
  DeviceProfile profile{.name = reader.at("name").string(),
                        .source = reader.at("source").string(),
                        .versions = reader.at("versions").strings(),
                        .shape = read_shape(reader.at("shape")),
                        .forward = read_pass(reader.at("forward")),
                        .backward = read_pass(reader.at("backward")),
                        .matrix_flops_per_s = reader.at("matrix_flops_per_s").number(1, kMaxRate),
                        .spread = reader.at("spread").number(0, kMaxRate)};
  if (reader.has("link")) profile.link = read_link(reader.at("link"));
  return profile;
}

DeviceProfile read_device_profile(const std::filesystem::path& path) {
  return device_profile_from_json(read_json(path), path.string());
}

ClusterSpec single_node(const DeviceProfile& profile) {
  if (!profile.link) {
    throw UserError(text("device profile ", profile.name,
                         " says nothing about links between ranks; measure the machine with "
                         "longspan profile (GPUs where two of them are visible), or name a "
                         "cluster"));
  }
  return {.name = profile.name,
          .device = profile.name,
          .gpus_per_node = 1,
          .inside_node = *profile.link,
          .between_nodes = *profile.link};
}

}  // namespace longspan
