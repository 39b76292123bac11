// Numbers of weight files, copied to and from the float32 or float64 of a run.
//
//   copy_elements(view, {0, 1024}, destination);            // F32, F64, BF16, F16 -> float, double
//   copy_scaled_elements(payload, scales, {0, 1024}, destination);   // F8_E4M3 in scaled blocks
//   append_elements(values, StoredDtype::kBF16, bytes);     // float, double -> F32, F64, BF16
//
// Widening is exact; scaled values are rounded once. Narrowing rounds to nearest, ties to even;
// not-a-numbers stay what they are. Bytes of files may start at any address, so everything is
// copied. Pure functions; any thread.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/range.h"
#include "base/real_span.h"
#include "formats/safetensors.h"

namespace longspan {

bool is_real_dtype(StoredDtype dtype);

// destination = elements [elements) of the tensor, row-major; as many as the destination has.
// The dtype must be one of F32, F64, BF16, F16 (InternalError otherwise: check first).
void copy_elements(const TensorView& tensor, Range elements, const RealSpan& destination);

// Matrices of 8-bit numbers with one float32 scale for each block of 128 x 128: the shape of the
// scales that belong to a matrix.
std::vector<int64_t> block_scale_shape(const std::vector<int64_t>& matrix);

// destination = elements of an F8_E4M3 matrix, each times the scale of its block (F32, of
// block_scale_shape).
void copy_scaled_elements(const TensorView& matrix, const TensorView& scales, Range elements,
                          const RealSpan& destination);

// Appends the values as little-endian bytes of `dtype`: F32, F64 or BF16.
void append_elements(const RealSpan& values, StoredDtype dtype, std::string& bytes);

}  // namespace longspan
