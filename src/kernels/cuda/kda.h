// Kimi delta attention (KDA) in chunks, on a GPU: twin of kernels/cpu/kda.h, for all heads and
// stretches of a piece at once.
//
// Why other calls than on the CPU: there a thread works through one head of one stretch; here each
// step of the chunked form is one launch over all chunks and heads, or, where states pass from
// chunk to chunk, over all stretches, heads and groups of state columns.
//
//   kda_prepare(in, factors, stream);                // per chunk, before any state is known
//   kda_forward(in, factors, {.state_before = s, .o = o, .state_after = t}, stream);
//   // backward: prepare, then
//   kda_fill_states(...); kda_retreat(...); kda_products(...); kda_differentiate(...);
//
// A chunk is up to kda_chunk_rows<T>() tokens of one stretch; its list comes from the caller.
// Buffers between the kernels have the type of the run, and rows of kda_row_width(width) values, in
// which what is beyond the real width is zero: [heads, tokens, row width], or per pair of rows
// [heads, tokens, chunk rows]. Sums, states and logarithms of decays are Accumulate<T>.
// Any g <= 0 is safe: every exponential is of a sum of g, so at most 1.
// Conventions as in cuda_types.h.
#pragma once

#include <cstdint>

#include "kernels/cuda/cuda_types.h"

namespace longspan::cuda {

template <typename T>
constexpr int kda_chunk_rows() {
  return std::is_same_v<T, double> ? 32 : 64;
}

// 0 if no kernel fits heads of this width.
constexpr int kda_row_width(int64_t width) {
  return width <= 32 ? 32 : width <= 128 ? 128 : 0;
}

struct KdaChunk {
  int32_t first_row = 0;  // token of the piece
  int32_t rows = 0;
  int32_t stretch = 0;
  int32_t ends = 0;  // 1: first of its stretch, 2: last
  __host__ __device__ bool first() const { return (ends & 1) != 0; }
  __host__ __device__ bool last() const { return (ends & 2) != 0; }
};

struct KdaPlaces {
  const KdaChunk* chunks = nullptr;  // by stretch, in order
  int64_t num_chunks = 0;
  const int32_t* first_chunks = nullptr;  // by stretch, and one more: the number of chunks
  const int32_t* longest_first =
      nullptr;  // the stretches, by number of chunks: long ones start first
  int64_t num_stretches = 0;
  int64_t tokens = 0;
  int64_t heads = 1;
  int64_t width = 1;  // of keys and of values
};

template <typename T>
struct KdaInput {
  KdaPlaces places;
  const T* qkv = nullptr;            // [3, heads, tokens, row width], q scaled
  const Accumulate<T>* g = nullptr;  // [tokens, heads, width]
  const T* beta = nullptr;           // [tokens, heads]
};

// What chunks give before any state is known (kernels/cpu/kda_chunk.h has the formulas). `solved`
// and `b` may be null: only backward needs them.
template <typename T>
struct KdaFactors {
  T* w = nullptr;
  T* u = nullptr;
  T* q_plus = nullptr;
  T* k_minus = nullptr;
  T* p = nullptr;                  // [heads, tokens, chunk rows]
  T* solved = nullptr;             // (I + A)^-1, likewise
  T* b = nullptr;                  // likewise
  Accumulate<T>* gamma = nullptr;  // [chunks, heads, row width]
};

template <typename T>
void kda_prepare(const KdaInput<T>& in, const KdaFactors<T>& factors, Stream stream);

// States are [heads, width, width]; `state_before` (null: zero) belongs to the first stretch,
// `state_after` (may be null) to the last.
template <typename T>
struct KdaStates {
  const Accumulate<T>* before = nullptr;
  Accumulate<T>* after = nullptr;
};

// o [tokens, heads, width].
template <typename T>
void kda_forward(const KdaPlaces& places, const KdaFactors<T>& factors, const KdaStates<T>& states,
                 T* o, Stream stream);

// The last stretch as a map of states, N | M [heads, width, 2 width], or N alone.
template <typename T>
void kda_map(const KdaPlaces& places, const KdaFactors<T>& factors, bool with_matrix,
             Accumulate<T>* map, Stream stream);

// The first stretch as a map of gradients of states, D | M^T, or D alone.
template <typename T>
void kda_gradient_map(const KdaPlaces& places, const KdaFactors<T>& factors, const T* d_o,
                      bool with_matrix, Accumulate<T>* map, Stream stream);

// What backward keeps of its two passes over the states. At every border between two chunks of a
// stretch, in their order, `states` and `d_states` hold the state there and its gradient:
// [kda_borders(places), heads, row width, row width].
template <typename T>
struct KdaTrail {
  T* states = nullptr;
  T* moved = nullptr;  // what states add to themselves, [heads, tokens, row width]
  T* d_states = nullptr;
  T* d_moved = nullptr;  // gradient of `moved`
};

constexpr int64_t kda_borders(const KdaPlaces& places) {
  return places.num_chunks - places.num_stretches;
}

// Fills states and moved.
template <typename T>
void kda_fill_states(const KdaPlaces& places, const KdaFactors<T>& factors,
                     const Accumulate<T>* state_before, const KdaTrail<T>& trail, Stream stream);

// From the last chunk to the first: fills d_states and d_moved. `d_states` has as `before` the
// gradient of the last stretch's state after, as `after` that of the first's state before.
template <typename T>
void kda_retreat(const KdaPlaces& places, const KdaFactors<T>& factors, const T* d_o,
                 const KdaStates<T>& d_states, const KdaTrail<T>& trail, Stream stream);

// Gradients of the factors, from kda_products to kda_differentiate.
template <typename T>
struct KdaFactorGradients {
  Accumulate<T>* q_plus = nullptr;  // [heads, tokens, row width]
  Accumulate<T>* k_minus = nullptr;
  Accumulate<T>* k_plus = nullptr;  // over beta
  Accumulate<T>* beta = nullptr;    // [heads, tokens], all but K+'s part
  Accumulate<T>* gamma = nullptr;   // [chunks, heads, row width]
  T* p = nullptr;                   // [heads, tokens, chunk rows]
  T* b = nullptr;
};

template <typename T>
struct KdaInputGradients {
  T* qkv = nullptr;            // [3, heads, tokens, row width]
  Accumulate<T>* g = nullptr;  // [tokens, heads, width]
  T* beta = nullptr;           // [tokens, heads]
};

// The products with states, and the triangular solve: `out`, and the gradient of v.
template <typename T>
void kda_products(const KdaInput<T>& in, const KdaFactors<T>& factors, const KdaTrail<T>& trail,
                  const Accumulate<T>* state_before, const T* d_o,
                  const Accumulate<T>* d_state_after, const KdaFactorGradients<T>& out,
                  const KdaInputGradients<T>& gradients, Stream stream);

// All pairs of rows, and the decays: gradients of q, k, g, beta.
template <typename T>
void kda_differentiate(const KdaInput<T>& in, const KdaFactorGradients<T>& factors,
                       const KdaInputGradients<T>& gradients, Stream stream);

}  // namespace longspan::cuda
