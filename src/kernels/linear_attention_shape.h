// Sizes of a linear-attention layer (KDA), and rows that stand at a stride.
//
//   LinearAttentionShape shape{.heads = 64, .key_width = 128, .value_width = 128};
//   Strip<const float> k{data, heads * width};          // k.row(i): one head's row of token i
//
// Values without state; any thread.
#pragma once

#include <cstdint>

namespace longspan {

struct LinearAttentionShape {
  int64_t heads = 1;
  int64_t key_width = 1;
  int64_t value_width = 1;
  int64_t conv_taps = 4;  // of the short convolution; the last one stands on the current token
  bool operator==(const LinearAttentionShape&) const = default;
};

template <typename Real>
struct Strip {
  Real* data = nullptr;
  int64_t stride = 0;
  Real* row(int64_t i) const { return data + i * stride; }
};

}  // namespace longspan
