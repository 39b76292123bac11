// The fused attention operations of libtorch that longspan uses on GPUs, and nothing else of them.
//
// Why a file of its own: their names begin with an underscore, they carry no promise. Here alone
// they are called; check_library_attention() compares the schema strings of the libtorch that runs
// with those that this file was written for, before a run begins.
//
//   const LibraryOutput out = flash_forward({q, k, v, query_ends, key_ends, ...});
//   const LibraryGradients gradients = flash_backward(inputs, d_o, o, lse);
//   const LibraryOutput out = cudnn_forward({q, k, v, causal, scale});   // equal rectangles
//
// FlashAttention-2 on packed sequences ("varlen"): q [rows, H, K], k and v [keys, G, K] in
// bfloat16, K a multiple of 8 up to 256. Sequence i holds query rows query_ends[i] to query_ends[i
// + 1] and keys likewise; *_ends are int32 on the device and begin with 0. A causal sequence is
// bottom-right: its last row sees all its keys. LSE is float32, natural, [H, rows]. Its backward
// gives the same bits on repeat if torch's deterministic algorithms are asked for.
// cuDNN's dense attention on B rectangles of one size, full, or causal if they are squares: nearly
// twice as fast on Hopper, but each new shape costs it a plan of 50 ms in each thread, and its
// backward adds in no fixed order. q [B, S, H, K], k and v [B, T, G, K], rows of one head
// contiguous; LSE [B, H, S]. Thread contract: work is queued on the calling thread's stream.
#pragma once

#include <ATen/core/Tensor.h>

#include <string>

#include "cost/direction.h"
#include "kernels/attention_shape.h"

namespace longspan {

// UserError if libtorch's operations are not those this program was written for.
void check_library_attention();

// "" if the operation runs such heads in such a type, otherwise why not.
std::string flash_attention_refusal(const AttentionShape& shape, at::ScalarType type);

struct FlashInputs {
  at::Tensor q;
  at::Tensor k;
  at::Tensor v;
  at::Tensor query_ends;
  at::Tensor key_ends;
  int64_t query_rows_max = 0;  // of one sequence
  int64_t key_rows_max = 0;
  bool causal = false;
  double scale = 1;
};

struct LibraryOutput {
  at::Tensor o;
  at::Tensor lse;
};

LibraryOutput flash_forward(const FlashInputs& in);

struct LibraryGradients {
  at::Tensor d_q;
  at::Tensor d_k;  // per key head
  at::Tensor d_v;
};

// `o` and `lse` of the whole rows: merged over all parts.
LibraryGradients flash_backward(const FlashInputs& in, const at::Tensor& d_o, const at::Tensor& o,
                                const at::Tensor& lse);

// "" if cuDNN is to run such heads in such a type and direction, otherwise why not.
std::string cudnn_attention_refusal(const AttentionShape& shape, at::ScalarType type,
                                    Direction direction);

struct DenseInputs {
  at::Tensor q;
  at::Tensor k;
  at::Tensor v;
  bool causal = false;
  double scale = 1;
};

LibraryOutput cudnn_forward(const DenseInputs& in);
LibraryGradients cudnn_backward(const DenseInputs& in, const at::Tensor& d_o, const at::Tensor& o,
                                const at::Tensor& lse);

}  // namespace longspan
