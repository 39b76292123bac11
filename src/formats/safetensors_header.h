// The header of a safetensors file: names, dtypes, shapes and places of tensors.
//
// A file is: u64 little-endian length of the JSON text; the JSON object name -> {"dtype", "shape",
// "data_offsets": [begin, end) counted from the end of the header}, with an optional "__metadata__"
// of strings; then row-major data without gaps. The JSON is padded with spaces so that data starts
// at a multiple of 8. The format is little-endian, and so is every machine we run on.
//
//   const SafetensorsHeader header = parse_safetensors_header(file.bytes(), "model.safetensors");
//
// Parsing checks everything: a header that parses describes the file it stands in completely (no
// overlap, no gap, nothing after the last tensor, spans as large as shape x dtype). Tensors come in
// the order of their data, which is the order a writer has to repeat to get the same bytes again.
// Pure functions; any thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/range.h"

namespace longspan {

enum class StoredDtype {
  kBool,
  kU8,
  kI8,
  kF8E4M3,
  kF8E5M2,
  kF8E8M0,
  kU16,
  kI16,
  kF16,
  kBF16,
  kU32,
  kI32,
  kF32,
  kU64,
  kI64,
  kF64,
};

// As the format spells it: "BF16", "F8_E4M3".
std::string_view dtype_name(StoredDtype dtype);
int64_t dtype_bytes(StoredDtype dtype);
std::optional<StoredDtype> dtype_from_name(std::string_view name);

struct TensorDescription {
  std::string name;
  StoredDtype dtype = StoredDtype::kF32;
  std::vector<int64_t> shape;

  bool operator==(const TensorDescription&) const = default;
};

// InternalError if the product does not fit 63 bits or a dimension is negative.
int64_t element_count(const TensorDescription& tensor);
int64_t byte_count(const TensorDescription& tensor);

using SafetensorsMetadata = std::map<std::string, std::string>;

struct SafetensorsHeader {
  std::vector<TensorDescription> tensors;  // in the order of their data
  std::vector<Range> spans;  // bytes of each tensor, counted from the start of the file
  SafetensorsMetadata metadata;
};

// `file` is the whole file; UserError naming `origin` and the tensor at fault.
SafetensorsHeader parse_safetensors_header(std::span<const std::byte> file,
                                           const std::string& origin);

// The bytes before the data of a file that holds `tensors` one after the other.
std::string format_safetensors_header(const std::vector<TensorDescription>& tensors,
                                      const SafetensorsMetadata& metadata);

}  // namespace longspan
