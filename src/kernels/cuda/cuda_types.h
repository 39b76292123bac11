// The element types of the CUDA kernels, for files that nvcc does not compile.
//
// Why: kernels are templates over the type in which a run computes (bfloat16, float32 or float64);
// sums, states and gradients have the accumulation type that belongs to it. Callers name both
// without a CUDA header.
//
//   cuda::rms_norm_forward(x, weight, 1e-5, rows, width, y, inverse_rms, stream);
//
// Conventions of the folder: a function here has the name, the shapes and the meaning of its twin
// in kernels/cpu, takes device pointers and a stream, launches and returns. Nothing is allocated,
// nothing is waited for; work space comes from the caller. Sums have a fixed order, so the same
// inputs give the same bits. A refused launch is an InternalError.
// Thread contract: any thread; ordered by the stream.
#pragma once

#include <cstdint>
#include <type_traits>

struct CUstream_st;
struct __nv_bfloat16;

namespace longspan::cuda {

using Stream = CUstream_st*;
using Bf16 = __nv_bfloat16;

template <typename T>
using Accumulate = std::conditional_t<std::is_same_v<T, double>, double, float>;

}  // namespace longspan::cuda
