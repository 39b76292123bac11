// Attention on latents: one row of a token is key and value of all heads.
//
// Keys and values of head h are U_h c and V_h c of a token's latent c. Instead of expanding c for
// every head, U_h moves to the query and V_h to the output ("absorbed"), and attention reads
// latents alone (kernels/cpu/sparse_attention.h):
//
//   at::Tensor q_THR = absorb_queries(access, q_THK, ids.kv_b);        // U_h^T q
//   at::Tensor o_THV = expand_values(access, o_THR, ids.kv_b, value_width);     // V_h o
//
// The parameter is [H * (K + V), R]: for each head K rows U_h, then V rows V_h.
// Legend: T tokens, H heads, K and V head widths of keys and values, R latent width. Rows may be
// none. Kept for backward: the input. Weight gradients add up in the accumulation type.
// Thread contract: one rank, on its thread; the access must outlive the graph.
#pragma once

#include <ATen/core/Tensor.h>

#include "layers/parameter_access.h"

namespace longspan {

at::Tensor absorb_queries(const ParameterAccess& access, const at::Tensor& q_THK, ParameterId kv_b);

at::Tensor expand_values(const ParameterAccess& access, const at::Tensor& o_THR, ParameterId kv_b,
                         int64_t value_width);

}  // namespace longspan
