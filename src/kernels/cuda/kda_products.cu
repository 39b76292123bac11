// Backward of the products with states and of the triangular solve, a block for each chunk and
// head.
//
//   dP = lower(dO moved^T);  dQ+ = dO S^T;  dK- = moved dS^T;  dgamma = rowsum(S dS)
//   Zv = T^T d_moved;  Zk = -T^T (d_moved S^T), T = (I + A)^-1;  dv = beta Zv;  dK+ = beta Zk
//   dA = -lower(Zv U^T + Zk W^T);  dB = beta dA;  dbeta = rowsum(Zv v) + rowsum(Zk K+) +
//   rowsum(dA B)
#include "kernels/cuda/kda_tiles.cuh"

namespace longspan::cuda {
namespace {

template <typename T>
struct Products {
  KdaInput<T> in;
  KdaFactors<T> factors;
  KdaTrail<T> trail;
  const Accumulate<T>* state_before = nullptr;
  const T* d_o = nullptr;
  const Accumulate<T>* d_state_after = nullptr;
  KdaFactorGradients<T> out;
  KdaInputGradients<T> gradients;
};

// A state at the end of a chunk: at a border (rows of W), given from outside (rows of the real
// width), or zero.
template <typename T>
struct EdgeState {
  const T* border = nullptr;
  const Accumulate<T>* outer = nullptr;

  __device__ bool zero() const { return border == nullptr && outer == nullptr; }
};

template <typename T, int W>
class ProductGradients {
  using A = Accumulate<T>;
  static constexpr int kRows = kda_chunk_rows<T>();
  static constexpr int kStride = row_stride<T>(W);
  static constexpr int kPairStride = row_stride<T>(kRows);
  static constexpr int kPanel = std::is_same_v<T, double> ? 32 : W;  // of a state's columns
  static constexpr int kPanelStride = row_stride<T>(kPanel);

 public:
  static constexpr int64_t kSharedBytes = shared_bytes<T>(W * kPanelStride) +
                                          3 * shared_bytes<T>(kRows * kStride) +
                                          shared_bytes<T>(kRows * kPairStride);

  __device__ explicit ProductGradients(const Products<T>& all)
      : all_(all), at_(chunk_place(all.in.places)) {
    SharedSpace space;
    panel_ = space.template take<T>(W * kPanelStride);
    first_ = space.template take<T>(kRows * kStride);
    second_ = space.template take<T>(kRows * kStride);
    third_ = space.template take<T>(kRows * kStride);
    pairs_ = space.template take<T>(kRows * kPairStride);
  }

  __device__ void run() {
    const KdaPlaces& places = all_.in.places;
    load_d_o();
    load_tile(all_.trail.moved, second_);
    load_tile(all_.trail.d_moved, third_);
    load_rows<T, kRows>(all_.factors.solved + at_.by_head(places, kRows), kRows, at_.chunk.rows,
                        kRows, pairs_);
    __syncthreads();
    differentiate_p();
    const EdgeState<T> before = state_before();
    const EdgeState<T> after = d_state_after();
    differentiate_with(before);
    differentiate_k_minus(after);
    differentiate_gamma(before, after);
    differentiate_solve();
  }

 private:
  __device__ void load_tile(const T* from, T* tile) {
    load_rows<T, W>(from + at_.by_head(all_.in.places, W), W, at_.chunk.rows, kRows, tile);
  }

  __device__ void load_d_o() {
    const KdaPlaces& places = all_.in.places;
    const T* from = all_.d_o + at_.by_token(places, places.width);
    const int64_t stride = places.heads * places.width;
    if (places.width == W) return load_rows<T, W>(from, stride, at_.chunk.rows, kRows, first_);
    load_real_rows<T, W>(from, stride, places.width, at_.chunk.rows, kRows, 0, first_);
  }

  __device__ EdgeState<T> state_before() const {
    const KdaPlaces& places = all_.in.places;
    EdgeState<T> state;
    if (!at_.chunk.first()) {
      state.border = all_.trail.states + at_.by_border(places, W * W);
    } else if (at_.chunk.stretch == 0 && all_.state_before != nullptr) {
      state.outer = all_.state_before + at_.head * places.width * places.width;
    }
    return state;
  }

  __device__ EdgeState<T> d_state_after() const {
    const KdaPlaces& places = all_.in.places;
    EdgeState<T> state;
    if (!at_.chunk.last()) {
      const ChunkPlace next = chunk_place(places, at_.index + 1, at_.head);
      state.border = all_.trail.d_states + next.by_border(places, W * W);
    } else if (at_.chunk.stretch == places.num_stretches - 1 && all_.d_state_after != nullptr) {
      state.outer = all_.d_state_after + at_.head * places.width * places.width;
    }
    return state;
  }

  __device__ void load_panel(const EdgeState<T>& state, int first_column) {
    const int64_t width = all_.in.places.width;
    if (state.border != nullptr) {
      load_rows<T, kPanel>(state.border + first_column, W, W, W, panel_);
    } else {
      load_real_rows<T, kPanel>(state.outer, width, width, static_cast<int>(width), W, first_column,
                                panel_);
    }
    __syncthreads();
  }

  __device__ void differentiate_p() {
    BlockSums<T, kRows, kRows> sums;
    sums.template add_product<kPlain, kTransposed>(W, {first_, kStride}, {second_, kStride});
    T* to = all_.out.p + at_.by_head(all_.in.places, kRows);
    sums.for_each_pair([&](int i, int j, A& one, A& two) {
      if (i >= at_.chunk.rows) return;
      A values[2] = {j <= i ? one : A{0}, j + 1 <= i ? two : A{0}};
      store<2>(to + i * kRows + j, values);
    });
  }

  template <typename Sums>
  __device__ void write_rows(Sums& sums, A* result) {
    A* to = result + at_.by_head(all_.in.places, W);
    sums.for_each_pair([&](int row, int column, A& one, A& two) {
      if (row >= at_.chunk.rows) return;
      A values[2] = {one, two};
      store<2>(to + row * W + column, values);
    });
  }

  template <typename Sums>
  __device__ static void put_rows(Sums& sums, T* tile) {
    sums.for_each_pair([&](int row, int column, A& one, A& two) {
      store_pair<T>(tile + row * kStride + column, one, two);
    });
  }

  // dQ+; and d_moved S^T takes the place of dO.
  __device__ void differentiate_with(const EdgeState<T>& before) {
    BlockSums<T, kRows, W> d_q_plus;
    BlockSums<T, kRows, W> recalled;
    for (int column = 0; column < W && !before.zero(); column += kPanel) {
      load_panel(before, column);
      const Operand<T> panel{panel_, kPanelStride};
      d_q_plus.template add_product<kPlain, kTransposed>(kPanel, {first_ + column, kStride}, panel);
      recalled.template add_product<kPlain, kTransposed>(kPanel, {third_ + column, kStride}, panel);
      __syncthreads();
    }
    write_rows(d_q_plus, all_.out.q_plus);
    __syncthreads();
    put_rows(recalled, first_);
  }

  __device__ void differentiate_k_minus(const EdgeState<T>& after) {
    BlockSums<T, kRows, W> sums;
    for (int column = 0; column < W && !after.zero(); column += kPanel) {
      load_panel(after, column);
      sums.template add_product<kPlain, kTransposed>(kPanel, {second_ + column, kStride},
                                                     {panel_, kPanelStride});
      __syncthreads();
    }
    write_rows(sums, all_.out.k_minus);
  }

  __device__ void differentiate_gamma(const EdgeState<T>& before, const EdgeState<T>& after) {
    const int64_t width = all_.in.places.width;
    const auto value = [&](const EdgeState<T>& state, int row, int column) {
      if (state.border != nullptr) return widen(state.border[row * W + column]);
      const bool real = row < width && column < width;
      return real ? state.outer[row * width + column] : A{0};
    };
    A* to = all_.out.gamma + at_.by_chunk(all_.in.places, W);
    const int lane = static_cast<int>(threadIdx.x) % kWarp;
    const bool zero = before.zero() || after.zero();
    for (int row = static_cast<int>(threadIdx.x) / kWarp; row < W; row += kThreads / kWarp) {
      A sum = 0;
#pragma unroll
      for (int column = 0; column < W; column += kWarp) {
        if (!zero) sum += value(before, row, column + lane) * value(after, row, column + lane);
      }
      sum = warp_sum(sum);
      if (lane == 0) to[row] = sum;
    }
  }

  __device__ A beta(int row) const {
    const KdaPlaces& places = all_.in.places;
    if (row >= at_.chunk.rows) return 0;
    return widen(all_.in.beta[at_.by_token(places, 1) + row * places.heads]);
  }

  __device__ void differentiate_solve() {
    const KdaPlaces& places = all_.in.places;
    __syncthreads();  // the recalled rows are there
    BlockSums<T, kRows, W> z_v;
    BlockSums<T, kRows, W> z_k;
    const Operand<T> solved{pairs_, kPairStride};
    z_v.template add_product<kTransposed, kPlain>(kRows, solved, {third_, kStride});
    z_k.template add_product<kTransposed, kPlain>(kRows, solved, {first_, kStride});
    z_k.for_each_pair([](int, int, A& one, A& two) {
      one = -one;
      two = -two;
    });
    __syncthreads();
    put_rows(z_v, third_);
    put_rows(z_k, first_);
    write_rows(z_k, all_.out.k_plus);
    T* d_v = all_.gradients.qkv + 2 * places.heads * places.tokens * W + at_.by_head(places, W);
    z_v.for_each_pair([&](int row, int column, A& one, A& two) {
      if (row >= at_.chunk.rows) return;
      const A factor = beta(row);
      A values[2] = {factor * one, factor * two};
      store<2>(d_v + row * W + column, values);
    });
    load_tile(all_.factors.u, second_);
    __syncthreads();
    BlockSums<T, kRows, kRows> d_a;
    d_a.template add_product<kPlain, kTransposed>(W, {third_, kStride}, {second_, kStride});
    __syncthreads();
    load_tile(all_.factors.w, second_);
    __syncthreads();
    d_a.template add_product<kPlain, kTransposed>(W, {first_, kStride}, {second_, kStride});
    T* d_b = all_.out.b + at_.by_head(places, kRows);
    d_a.for_each_pair([&](int i, int j, A& one, A& two) {
      one = j < i ? -one : A{0};
      two = j + 1 < i ? -two : A{0};
      store_pair<T>(pairs_ + i * kPairStride + j, one, two);
      if (i >= at_.chunk.rows) return;
      const A factor = beta(i);
      A values[2] = {factor * one, factor * two};
      store<2>(d_b + i * kRows + j, values);
    });
    __syncthreads();
    differentiate_beta();
  }

  // Of Zv in third_ and dA in pairs_.
  __device__ void differentiate_beta() {
    const KdaPlaces& places = all_.in.places;
    const T* v = all_.in.qkv + 2 * places.heads * places.tokens * W + at_.by_head(places, W);
    const T* b = all_.factors.b + at_.by_head(places, kRows);
    A* to = all_.out.beta + at_.by_head(places, 1);
    const int lane = static_cast<int>(threadIdx.x) % kWarp;
    for (int row = static_cast<int>(threadIdx.x) / kWarp; row < at_.chunk.rows;
         row += kThreads / kWarp) {
      A sum = 0;
#pragma unroll
      for (int column = lane; column < W; column += kWarp) {
        sum += widen(third_[row * kStride + column]) * widen(v[row * W + column]);
      }
#pragma unroll
      for (int column = lane; column < kRows; column += kWarp) {
        sum += widen(pairs_[row * kPairStride + column]) * widen(b[row * kRows + column]);
      }
      sum = warp_sum(sum);
      if (lane == 0) to[row] = sum;
    }
  }

  const Products<T>& all_;
  ChunkPlace at_;
  T* panel_;
  T* first_;   // dO; d_moved S^T; Zk
  T* second_;  // moved; U; W
  T* third_;   // d_moved; Zv
  T* pairs_;   // (I + A)^-1; dA
};

template <typename T, int W>
__global__ void __launch_bounds__(kThreads, std::is_same_v<T, Bf16> ? 2 : 1)
    products_kernel(const __grid_constant__ Products<T> all) {
  ProductGradients<T, W>(all).run();
}

}  // namespace

template <typename T>
void kda_products(const KdaInput<T>& in, const KdaFactors<T>& factors, const KdaTrail<T>& trail,
                  const Accumulate<T>* state_before, const T* d_o,
                  const Accumulate<T>* d_state_after, const KdaFactorGradients<T>& out,
                  const KdaInputGradients<T>& gradients, Stream stream) {
  const Products<T> all{in, factors, trail, state_before, d_o, d_state_after, out, gradients};
  for_row_width(in.places.width, [&]<int W>() {
    launch_shared("KDA gradients of products", products_kernel<T, W>,
                  in.places.num_chunks * in.places.heads, ProductGradients<T, W>::kSharedBytes,
                  stream, all);
  });
}

#define LONGSPAN_INSTANTIATE(T)                                                            \
  template void kda_products(const KdaInput<T>&, const KdaFactors<T>&, const KdaTrail<T>&, \
                             const Accumulate<T>*, const T*, const Accumulate<T>*,         \
                             const KdaFactorGradients<T>&, const KdaInputGradients<T>&, Stream);
LONGSPAN_INSTANTIATE(Bf16)
LONGSPAN_INSTANTIATE(float)
LONGSPAN_INSTANTIATE(double)
#undef LONGSPAN_INSTANTIATE

}  // namespace longspan::cuda
