// Keys and values of all heads from one latent row per token, written out: for core attention.
//
// The input's rows are [R latent | P shared]: the latent is normed and expanded by kv_b (of each
// head K rows for its key, then V for its value); the shared part is the end of every head's key,
// as it is. Values are padded with zeros to the width of a key, since core attention has one head
// width:
//
//   auto [k_THK, v_THK] = latent_keys(access, kv_TL, {ids.kv_a_norm, ids.kv_b_proj}, sizes);
//
// Legend: T tokens, H heads, K = K' + P the width of a key, R latent width, L = R + P.
// Kept: the input and one number a row. Rows may be none.
// Thread contract: as ops.h.
#pragma once

#include <ATen/core/Tensor.h>

#include <utility>

#include "layers/parameter_access.h"

namespace longspan {

struct LatentKeyParameters {
  ParameterId norm = -1;
  ParameterId kv_b = -1;
};

struct LatentKeySizes {
  int64_t heads = 1;
  int64_t latent_width = 1;  // R
  int64_t own_width = 1;     // K', of a key
  int64_t shared_width = 0;  // P, of a key
  int64_t value_width = 1;
  double epsilon = 1e-6;  // of the norm

  int64_t key_width() const { return own_width + shared_width; }
};

std::pair<at::Tensor, at::Tensor> latent_keys(const ParameterAccess& access,
                                              const at::Tensor& kv_TL,
                                              const LatentKeyParameters& parameters,
                                              const LatentKeySizes& sizes);

}  // namespace longspan
