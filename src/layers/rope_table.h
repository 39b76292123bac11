// Cosines and sines of the rotary angles of a piece's tokens, shared by all layers and directions.
//
//   auto table = make_rope_table(inverse_frequencies, 1.0, positions, at::kFloat);
//   at::Tensor turned = rope(q_THK, table);  // layers/ops.h
//
// Immutable after it is made; graphs of several segments hold it through the shared pointer.
#pragma once

#include <ATen/core/Tensor.h>

#include <memory>
#include <span>

namespace longspan {

struct RopeTable {
  at::Tensor cosines;  // [tokens, head width / 2]
  at::Tensor sines;
};

// `options` give device and type: at::kFloat or at::kDouble.
// `positions` are document positions; `scaling` multiplies cosines and sines.
std::shared_ptr<const RopeTable> make_rope_table(std::span<const float> inverse_frequencies,
                                                 double scaling, std::span<const int64_t> positions,
                                                 const at::TensorOptions& options);

}  // namespace longspan
