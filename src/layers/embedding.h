// The token embedding, forward and backward. Its input has no gradient, so it is no node of a
// graph: the executor calls both directions itself.
//
//   at::Tensor x_TC = embed(access, ids.embedding, tokens);
//   embed_backward(access, ids.embedding, tokens, dx_TC);    // adds to the accumulator
//
// Token ids outside the table are an InternalError: the data sources refuse them with a message for
// users. Gradient rows add up in token order; bits do not depend on the number of threads.
// Thread contract: one rank, on its thread.
#pragma once

#include <cstdint>
#include <span>

#include "layers/parameter_access.h"

namespace longspan {

at::Tensor embed(const ParameterAccess& access, ParameterId table, std::span<const int32_t> tokens);

void embed_backward(const ParameterAccess& access, ParameterId table,
                    std::span<const int32_t> tokens, const at::Tensor& dx_TC);

}  // namespace longspan
