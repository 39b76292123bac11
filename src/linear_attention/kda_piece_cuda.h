// Private to linear_attention/: pieces on a GPU, on the kernels of kernels/cuda. In builds without
// CUDA it is not called, nor defined.
//
//   std::unique_ptr<KdaPiece> piece = make_cuda_kda_piece(std::move(setup));    // checked before
//
// Each step of the chunked form is one launch for all chunks, heads and stretches. Work is queued
// on the calling thread's stream; nothing waits. UserError for shapes without a kernel. Thread
// contract: as KdaPiece.
#pragma once

#include "linear_attention/kda_piece.h"

namespace longspan {

std::unique_ptr<KdaPiece> make_cuda_kda_piece(KdaPiece::Setup setup);

// kda_piece.h says what it means.
bool cuda_kda_is_fast(const LinearAttentionShape& shape, at::ScalarType type, at::Device device);

}  // namespace longspan
