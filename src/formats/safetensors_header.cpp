#include "formats/safetensors_header.h"

#include <algorithm>
#include <array>
#include <limits>
#include <nlohmann/json.hpp>
#include <numeric>
#include <set>

#include "base/check.h"
#include "formats/json.h"
#include "formats/json_fault.h"
#include "formats/little_endian.h"

namespace longspan {
namespace {

constexpr int64_t kLengthBytes = 8;
constexpr int64_t kAlignmentBytes = 8;

struct DtypeRow {
  StoredDtype dtype;
  std::string_view name;
  int64_t bytes;
};

constexpr std::array kDtypes = {
    DtypeRow{StoredDtype::kBool, "BOOL", 1},      DtypeRow{StoredDtype::kU8, "U8", 1},
    DtypeRow{StoredDtype::kI8, "I8", 1},          DtypeRow{StoredDtype::kF8E4M3, "F8_E4M3", 1},
    DtypeRow{StoredDtype::kF8E5M2, "F8_E5M2", 1}, DtypeRow{StoredDtype::kF8E8M0, "F8_E8M0", 1},
    DtypeRow{StoredDtype::kU16, "U16", 2},        DtypeRow{StoredDtype::kI16, "I16", 2},
    DtypeRow{StoredDtype::kF16, "F16", 2},        DtypeRow{StoredDtype::kBF16, "BF16", 2},
    DtypeRow{StoredDtype::kU32, "U32", 4},        DtypeRow{StoredDtype::kI32, "I32", 4},
    DtypeRow{StoredDtype::kF32, "F32", 4},        DtypeRow{StoredDtype::kU64, "U64", 8},
    DtypeRow{StoredDtype::kI64, "I64", 8},        DtypeRow{StoredDtype::kF64, "F64", 8},
};

const DtypeRow& row_of(StoredDtype dtype) {
  for (const DtypeRow& row : kDtypes) {
    if (row.dtype == dtype) return row;
  }
  LONGSPAN_CHECK(false, "dtype ", static_cast<int>(dtype));
}

// The bytes of shape x dtype, or nothing where they do not fit 63 bits or a dimension is negative.
std::optional<int64_t> checked_byte_count(const std::vector<int64_t>& shape, StoredDtype dtype) {
  int64_t bytes = dtype_bytes(dtype);
  bool is_empty = false;
  for (const int64_t extent : shape) {
    if (extent < 0) return std::nullopt;
    if (extent == 0) {
      is_empty = true;
    } else if (__builtin_mul_overflow(bytes, extent, &bytes)) {
      return std::nullopt;
    }
  }
  return is_empty ? 0 : bytes;
}

// The order of a header's keys does not matter (tensors are sorted by data), so the type with
// sorted keys is used: `Json` looks keys up one after the other, which is quadratic in 10^5
// tensors.
using SortedJson = nlohmann::json;

// The parser keeps the last of two equal keys; a file that names a tensor twice must be refused.
SortedJson parse_with_unique_keys(std::string_view source, const std::string& origin) {
  std::vector<std::set<std::string>> open_objects;
  std::string duplicate;
  const auto watch = [&](int, SortedJson::parse_event_t event, SortedJson& parsed) {
    if (event == SortedJson::parse_event_t::object_start) open_objects.emplace_back();
    if (event == SortedJson::parse_event_t::object_end) open_objects.pop_back();
    if (event == SortedJson::parse_event_t::key &&
        !open_objects.back().insert(parsed.get<std::string>()).second) {
      duplicate = parsed.get<std::string>();
    }
    return true;
  };
  try {
    SortedJson json = SortedJson::parse(source, watch);
    if (!duplicate.empty()) {
      throw UserError(text(origin, ": the header names '", duplicate, "' twice"));
    }
    return json;
  } catch (const SortedJson::exception& error) {
    throw UserError(
        text(origin, ": the header is not valid JSON: ", describe_json_error(error).reason));
  }
}

std::string_view header_text(std::span<const std::byte> file, const std::string& origin) {
  const auto file_bytes = static_cast<int64_t>(file.size());
  if (file_bytes < kLengthBytes) {
    throw UserError(text(origin, ": truncated: ", file_bytes,
                         " bytes, a safetensors file has at least 8; copy it again"));
  }
  const auto length = load_little_endian<uint64_t>(file, 0);
  if (length > static_cast<uint64_t>(file_bytes - kLengthBytes)) {
    throw UserError(text(origin, ": the header says it is ", length, " bytes long, the file has ",
                         file_bytes, ": truncated, or not a safetensors file"));
  }
  return {reinterpret_cast<const char*>(file.data()) + kLengthBytes, static_cast<size_t>(length)};
}

std::vector<int64_t> read_integers(const SortedJson& parent, const char* key,
                                   const std::string& where) {
  const auto found = parent.find(key);
  if (found == parent.end() || !found->is_array()) {
    throw UserError(text(where, ": '", key, "' must be a list of non-negative integers"));
  }
  std::vector<int64_t> values;
  for (const SortedJson& value : *found) {
    if (!value.is_number_unsigned() ||
        value.get<uint64_t>() > static_cast<uint64_t>(std::numeric_limits<int64_t>::max())) {
      throw UserError(text(where, ": '", key, "' must be a list of non-negative integers"));
    }
    values.push_back(value.get<int64_t>());
  }
  return values;
}

StoredDtype read_dtype(const SortedJson& entry, const std::string& where) {
  const auto found = entry.find("dtype");
  if (found == entry.end() || !found->is_string()) {
    throw UserError(text(where, ": 'dtype' must be a string"));
  }
  const std::optional<StoredDtype> dtype = dtype_from_name(found->get<std::string>());
  if (!dtype) {
    throw UserError(text(where, ": dtype ", found->get<std::string>(), " is not supported"));
  }
  return *dtype;
}

// Adds one tensor with its span counted from the start of the data.
void read_tensor(const std::string& name, const SortedJson& entry, const std::string& origin,
                 SafetensorsHeader& header) {
  const std::string where = text(origin, ": tensor '", name, "'");
  if (!entry.is_object()) throw UserError(text(where, ": its entry must be an object"));
  TensorDescription tensor{name, read_dtype(entry, where), read_integers(entry, "shape", where)};
  const std::vector<int64_t> offsets = read_integers(entry, "data_offsets", where);
  if (offsets.size() != 2 || offsets[0] > offsets[1]) {
    throw UserError(text(where, ": 'data_offsets' must be [begin, end] with begin <= end"));
  }
  const std::optional<int64_t> bytes = checked_byte_count(tensor.shape, tensor.dtype);
  if (!bytes || *bytes != offsets[1] - offsets[0]) {
    throw UserError(text(where, ": shape x dtype is ", bytes ? text(*bytes) : "more than 2^63",
                         " bytes, its data_offsets span ", offsets[1] - offsets[0]));
  }
  header.tensors.push_back(std::move(tensor));
  header.spans.push_back({offsets[0], offsets[1]});
}

void read_metadata(const SortedJson& entry, const std::string& origin, SafetensorsHeader& header) {
  if (!entry.is_object()) throw UserError(text(origin, ": '__metadata__' must be an object"));
  for (const auto& [key, value] : entry.items()) {
    if (!value.is_string()) {
      throw UserError(text(origin, ": '__metadata__' entry '", key, "' must be a string"));
    }
    header.metadata.emplace(key, value.get<std::string>());
  }
}

void sort_by_data(SafetensorsHeader& header) {
  std::vector<size_t> order(header.tensors.size());
  std::iota(order.begin(), order.end(), size_t{0});
  std::stable_sort(order.begin(), order.end(), [&](size_t a, size_t b) {
    const Range &left = header.spans[a], &right = header.spans[b];
    return std::pair(left.begin, left.end) < std::pair(right.begin, right.end);
  });
  SafetensorsHeader sorted;
  sorted.metadata = std::move(header.metadata);
  for (const size_t idx : order) {
    sorted.tensors.push_back(std::move(header.tensors[idx]));
    sorted.spans.push_back(header.spans[idx]);
  }
  header = std::move(sorted);
}

// Spans follow each other without overlap or gap and end where the file ends; then they are shifted
// to count from the start of the file.
void check_and_place(SafetensorsHeader& header, int64_t data_begin, int64_t file_bytes,
                     const std::string& origin) {
  int64_t end = 0;
  for (size_t idx = 0; idx < header.spans.size(); ++idx) {
    Range& span = header.spans[idx];
    const std::string where = text(origin, ": tensor '", header.tensors[idx].name, "'");
    if (span.begin < end) {
      throw UserError(text(where, ": its data overlaps that of '", header.tensors[idx - 1].name,
                           "' by ", end - span.begin, " bytes"));
    }
    if (span.begin > end) {
      throw UserError(text(where, ": ", span.begin - end,
                           " bytes before its data belong to no "
                           "tensor"));
    }
    if (span.end > file_bytes - data_begin) {
      throw UserError(text(where, ": its data ends ", span.end - (file_bytes - data_begin),
                           " bytes after the end of the file: truncated; copy it again"));
    }
    end = span.end;
    span = shift(span, data_begin);
  }
  if (data_begin + end != file_bytes) {
    throw UserError(text(origin, ": ", file_bytes - data_begin - end,
                         " bytes after the last tensor belong to no tensor"));
  }
}

}  // namespace

std::string_view dtype_name(StoredDtype dtype) {
  return row_of(dtype).name;
}

int64_t dtype_bytes(StoredDtype dtype) {
  return row_of(dtype).bytes;
}

std::optional<StoredDtype> dtype_from_name(std::string_view name) {
  for (const DtypeRow& row : kDtypes) {
    if (row.name == name) return row.dtype;
  }
  return std::nullopt;
}

int64_t byte_count(const TensorDescription& tensor) {
  const std::optional<int64_t> bytes = checked_byte_count(tensor.shape, tensor.dtype);
  LONGSPAN_CHECK(bytes.has_value(), "shape of tensor '", tensor.name, "' is out of range");
  return *bytes;
}

int64_t element_count(const TensorDescription& tensor) {
  return byte_count(tensor) / dtype_bytes(tensor.dtype);
}

SafetensorsHeader parse_safetensors_header(std::span<const std::byte> file,
                                           const std::string& origin) {
  const std::string_view source = header_text(file, origin);
  const SortedJson json = parse_with_unique_keys(source, origin);
  if (!json.is_object()) throw UserError(text(origin, ": the header must be a JSON object"));
  SafetensorsHeader header;
  for (const auto& [name, entry] : json.items()) {
    if (name == "__metadata__") {
      read_metadata(entry, origin, header);
    } else {
      read_tensor(name, entry, origin, header);
    }
  }
  sort_by_data(header);
  check_and_place(header, kLengthBytes + static_cast<int64_t>(source.size()),
                  static_cast<int64_t>(file.size()), origin);
  return header;
}

std::string format_safetensors_header(const std::vector<TensorDescription>& tensors,
                                      const SafetensorsMetadata& metadata) {
  Json json = Json::object();
  if (!metadata.empty()) {
    Json& entry = json["__metadata__"] = Json::object();
    for (const auto& [key, value] : metadata) entry[key] = value;
  }
  std::set<std::string> names{"__metadata__"};
  int64_t begin = 0;
  for (const TensorDescription& tensor : tensors) {
    LONGSPAN_CHECK(names.insert(tensor.name).second, "tensor '", tensor.name, "' declared twice");
    const int64_t end = begin + byte_count(tensor);
    // Appended, because `Json` would first look for the name among all before it.
    json.get_ref<Json::object_t&>().emplace_back(tensor.name,
                                                 Json{{"dtype", dtype_name(tensor.dtype)},
                                                      {"shape", tensor.shape},
                                                      {"data_offsets", {begin, end}}});
    begin = end;
  }
  std::string characters = json.dump();
  while (characters.size() % kAlignmentBytes != 0) characters += ' ';
  std::string bytes;
  append_little_endian(bytes, static_cast<uint64_t>(characters.size()));
  return bytes + characters;
}

}  // namespace longspan
