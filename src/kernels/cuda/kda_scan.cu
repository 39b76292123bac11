// States from chunk to chunk: forward, and their gradients backward.
//
// A block carries some columns of one head's state through one stretch, in registers. While it
// computes a chunk, in bfloat16, the next one's factors are on their way to shared memory.
#include "kernels/cuda/async_copy.cuh"
#include "kernels/cuda/kda_tiles.cuh"

namespace longspan::cuda {
namespace {

enum class Pass { kForward, kFill, kMap, kRetreat, kGradientMap };

template <Pass kPass>
constexpr bool kBackward = kPass == Pass::kRetreat || kPass == Pass::kGradientMap;

template <typename T>
struct Scan {
  KdaPlaces places;
  KdaFactors<T> factors;
  const Accumulate<T>* begin = nullptr;  // where the scan begins, of one stretch
  Accumulate<T>* end = nullptr;          // where it ends, likewise; [heads, width, all columns]
  const T* d_o = nullptr;
  T* o = nullptr;
  KdaTrail<T> trail = {};
  int64_t only_stretch = -1;  // or all
  int64_t parts = 1;          // N, or N and M
};

template <typename T, int W>
constexpr int slice_columns() {
  return std::is_same_v<T, double> || W < 64 ? 32 : 64;
}

template <typename T, int W, Pass kPass>
class Scanner {
  using A = Accumulate<T>;
  static constexpr int kRows = kda_chunk_rows<T>();
  static constexpr int kSlice = slice_columns<T, W>();
  static constexpr int kStages = std::is_same_v<T, Bf16> ? 2 : 1;
  static constexpr int kWideStride = row_stride<T>(W);
  static constexpr int kSliceStride = row_stride<T>(kSlice);
  static constexpr int kPairStride = row_stride<T>(kRows);

  struct Stage {
    T* w;
    T* q_plus;
    T* k_minus;
    T* p;
    T* slice;  // of U, backward of dO
    A* gamma;
  };
  static constexpr int64_t kStageBytes = 3 * shared_bytes<T>(kRows * kWideStride) +
                                         shared_bytes<T>(kRows * kPairStride) +
                                         shared_bytes<T>(kRows * kSliceStride) + shared_bytes<A>(W);

 public:
  static constexpr int64_t kSharedBytes = kStages * kStageBytes +
                                          shared_bytes<T>(W * kSliceStride) +
                                          shared_bytes<T>(kRows * kSliceStride);

  __device__ explicit Scanner(const Scan<T>& scan) : scan_(scan) {
    const int64_t slices = scan.parts * (W / kSlice);
    const auto column = static_cast<int>(blockIdx.x % slices) * kSlice;
    matrix_part_ = column >= W;
    first_column_ = column % W;
    head_ = blockIdx.x / slices % scan.places.heads;
    stretch_ = scan.only_stretch >= 0
                   ? scan.only_stretch
                   : scan.places.longest_first[blockIdx.x / slices / scan.places.heads];
    SharedSpace space;
    stages_ = space.template take<unsigned char>(kStages * kStageBytes);
    state_copy_ = space.template take<T>(W * kSliceStride);
    moved_ = space.template take<T>(kRows * kSliceStride);
  }

  __device__ void run() {
    const int64_t first = scan_.places.first_chunks[stretch_];
    const int64_t end = scan_.places.first_chunks[stretch_ + 1];
    const auto chunk_at = [&](int64_t step) {
      return kBackward<kPass> ? end - 1 - step : first + step;
    };
    begin_state();
    fetch(chunk_at(0), stage(0));
    for (int64_t step = 0; step < end - first; ++step) {
      const bool more = step + 1 < end - first;
      if (kStages > 1 && more) {
        fetch(chunk_at(step + 1), stage(step + 1));
        wait_for_copies<1>();
      } else {
        wait_for_copies<0>();
      }
      const ChunkPlace at = chunk_place(scan_.places, chunk_at(step), head_);
      copy_state(at);
      __syncthreads();
      if constexpr (kBackward<kPass>) {
        retreat(at, stage(step));
      } else {
        advance(at, stage(step));
      }
      __syncthreads();
      if (kStages == 1 && more) fetch(chunk_at(step + 1), stage(step + 1));
    }
    end_state();
  }

 private:
  __device__ Stage stage(int64_t step) const {
    SharedSpace space(stages_ + step % kStages * kStageBytes);
    Stage stage;
    stage.w = space.template take<T>(kRows * kWideStride);
    stage.q_plus = space.template take<T>(kRows * kWideStride);
    stage.k_minus = space.template take<T>(kRows * kWideStride);
    stage.p = space.template take<T>(kRows * kPairStride);
    stage.slice = space.template take<T>(kRows * kSliceStride);
    stage.gamma = space.template take<A>(W);
    return stage;
  }

  // Only the stretch at the piece's border begins with a state, or leaves one.
  __device__ bool begins_here() const {
    return scan_.begin != nullptr &&
           stretch_ == (kBackward<kPass> ? scan_.places.num_stretches - 1 : 0);
  }
  __device__ bool ends_here() const {
    return scan_.end != nullptr &&
           stretch_ == (kBackward<kPass> ? 0 : scan_.places.num_stretches - 1);
  }

  __device__ void begin_state() {
    const int64_t width = scan_.places.width;
    state_.for_each_pair([&](int row, int column, A& one, A& two) {
      A* values[2] = {&one, &two};
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        const int place = first_column_ + column + i;
        if (matrix_part_) {
          *values[i] = row == place && row < width ? A{1} : A{0};
        } else if (begins_here() && row < width && place < width) {
          *values[i] = scan_.begin[(head_ * width + row) * width + place];
        }
      }
    });
  }

  __device__ void end_state() {
    if (!ends_here()) return;
    const int64_t width = scan_.places.width;
    const int64_t columns = scan_.parts * width;
    A* to = scan_.end + head_ * width * columns + (matrix_part_ ? width : 0);
    state_.for_each_pair([&](int row, int column, A& one, A& two) {
      const int place = first_column_ + column;
      if (row >= width) return;
      if (place < width) to[row * columns + place] = one;
      if (place + 1 < width) to[row * columns + place + 1] = two;
    });
  }

  template <int kWidth>
  __device__ void copy_rows(const T* from, int64_t stride, int rows, T* tile) {
    constexpr int kValues = std::is_same_v<T, Bf16> ? 8 : 1;  // that one copy takes
    constexpr int kCopies = kWidth / kValues;
    for (int at = static_cast<int>(threadIdx.x); at < kRows * kCopies; at += kThreads) {
      const int row = at / kCopies;
      const int column = at % kCopies * kValues;
      const bool real = row < rows;
      copy_async<kValues * sizeof(T)>(tile + row * row_stride<T>(kWidth) + column,
                                      real ? from + row * stride + column : from, real);
    }
  }

  __device__ void fetch(int64_t chunk, const Stage& to) {
    const KdaPlaces& places = scan_.places;
    const KdaFactors<T>& factors = scan_.factors;
    const ChunkPlace at = chunk_place(places, chunk, head_);
    const int64_t first = at.by_head(places, W);
    copy_rows<W>(factors.w + first, W, at.chunk.rows, to.w);
    copy_rows<W>(factors.k_minus + first, W, at.chunk.rows, to.k_minus);
    if (kBackward<kPass> || kPass == Pass::kForward) {
      copy_rows<W>(factors.q_plus + first, W, at.chunk.rows, to.q_plus);
      copy_rows<kRows>(factors.p + at.by_head(places, kRows), kRows, at.chunk.rows, to.p);
    }
    if (!kBackward<kPass> && !matrix_part_) {
      copy_rows<kSlice>(factors.u + first + first_column_, W, at.chunk.rows, to.slice);
    }
    if (kBackward<kPass> && !matrix_part_) fetch_d_o(at, to.slice);
    for (int column = static_cast<int>(threadIdx.x); column < W; column += kThreads) {
      copy_async<sizeof(A)>(to.gamma + column, factors.gamma + at.by_chunk(places, W) + column,
                            true);
    }
    close_copies();
  }

  __device__ void fetch_d_o(const ChunkPlace& at, T* to) {
    const KdaPlaces& places = scan_.places;
    const T* from = scan_.d_o + at.by_token(places, places.width);
    const int64_t stride = places.heads * places.width;
    if (places.width == W) {
      copy_rows<kSlice>(from + first_column_, stride, at.chunk.rows, to);
    } else {
      load_real_rows<T, kSlice>(from, stride, places.width, at.chunk.rows, kRows, first_column_,
                                to);
    }
  }

  // The state as an operand; and for backward the state, or its gradient, at the chunk's border.
  __device__ void copy_state(const ChunkPlace& at) {
    T* kept = nullptr;
    const KdaPlaces& places = scan_.places;
    if (kPass == Pass::kFill && !at.chunk.first()) {
      kept = scan_.trail.states + at.by_border(places, W * W) + first_column_;
    }
    if (kPass == Pass::kRetreat && !at.chunk.last()) {
      const ChunkPlace next = chunk_place(places, at.index + 1, head_);
      kept = scan_.trail.d_states + next.by_border(places, W * W) + first_column_;
    }
    state_.for_each_pair([&](int row, int column, A& one, A& two) {
      store_pair<T>(state_copy_ + row * kSliceStride + column, one, two);
      if (kept != nullptr) store_pair<T>(kept + row * W + column, one, two);
    });
  }

  // moved = U - W S;  o = Q+ S + P moved;  S = gamma S + K-^T moved.
  __device__ void advance(const ChunkPlace& at, const Stage& stage) {
    const KdaPlaces& places = scan_.places;
    const Operand<T> state{state_copy_, kSliceStride};
    const Operand<T> moved{moved_, kSliceStride};
    BlockSums<T, kRows, kSlice> taken;
    taken.template add_product<kPlain, kPlain>(W, {stage.w, kWideStride}, state);
    taken.for_each_pair([&](int row, int column, A& one, A& two) {
      const T* u = stage.slice + row * kSliceStride + column;
      one = (matrix_part_ ? A{0} : widen(u[0])) - one;
      two = (matrix_part_ ? A{0} : widen(u[1])) - two;
      store_pair<T>(moved_ + row * kSliceStride + column, one, two);
      if (kPass == Pass::kFill && row < at.chunk.rows) {
        store_pair<T>(scan_.trail.moved + at.by_head(places, W) + row * W + first_column_ + column,
                      one, two);
      }
    });
    __syncthreads();
    if constexpr (kPass == Pass::kForward) {
      BlockSums<T, kRows, kSlice> o;
      o.template add_product<kPlain, kPlain>(W, {stage.q_plus, kWideStride}, state);
      o.template add_product<kPlain, kPlain>(kRows, {stage.p, kPairStride}, moved);
      write_o(at, o);
    }
    state_.for_each_pair([&](int row, int, A& one, A& two) {
      one *= stage.gamma[row];
      two *= stage.gamma[row];
    });
    state_.template add_product<kTransposed, kPlain>(kRows, {stage.k_minus, kWideStride}, moved);
  }

  __device__ void write_o(const ChunkPlace& at, BlockSums<T, kRows, kSlice>& sums) {
    const KdaPlaces& places = scan_.places;
    T* to = scan_.o + at.by_token(places, places.width) + first_column_;
    const int64_t stride = places.heads * places.width;
    const int64_t columns = places.width - first_column_;
    sums.for_each_pair([&](int row, int column, A& one, A& two) {
      if (row >= at.chunk.rows) return;
      T* pair = to + row * stride + column;
      if (places.width == W) return store_pair<T>(pair, one, two);
      if (column < columns) pair[0] = narrow_to<T>(one);
      if (column + 1 < columns) pair[1] = narrow_to<T>(two);
    });
  }

  // d_moved = P^T dO + K- dS;  dS = gamma dS + Q+^T dO - W^T d_moved.
  __device__ void retreat(const ChunkPlace& at, const Stage& stage) {
    const KdaPlaces& places = scan_.places;
    const Operand<T> d_o{stage.slice, kSliceStride};
    BlockSums<T, kRows, kSlice> d_moved;
    d_moved.template add_product<kPlain, kPlain>(W, {stage.k_minus, kWideStride},
                                                 {state_copy_, kSliceStride});
    if (!matrix_part_) {
      d_moved.template add_product<kTransposed, kPlain>(kRows, {stage.p, kPairStride}, d_o);
    }
    d_moved.for_each_pair([&](int row, int column, A& one, A& two) {
      store_pair<T>(moved_ + row * kSliceStride + column, -one, -two);
      if (kPass == Pass::kRetreat && row < at.chunk.rows) {
        store_pair<T>(
            scan_.trail.d_moved + at.by_head(places, W) + row * W + first_column_ + column, one,
            two);
      }
    });
    __syncthreads();
    state_.for_each_pair([&](int row, int, A& one, A& two) {
      one *= stage.gamma[row];
      two *= stage.gamma[row];
    });
    state_.template add_product<kTransposed, kPlain>(kRows, {stage.w, kWideStride},
                                                     {moved_, kSliceStride});
    if (!matrix_part_) {
      state_.template add_product<kTransposed, kPlain>(kRows, {stage.q_plus, kWideStride}, d_o);
    }
  }

  const Scan<T>& scan_;
  int64_t head_;
  int64_t stretch_;
  bool matrix_part_;
  int first_column_;
  unsigned char* stages_;
  T* state_copy_;
  T* moved_;
  BlockSums<T, W, kSlice> state_;
};

template <typename T, int W, Pass kPass>
__global__ void __launch_bounds__(kThreads, 1) scan_kernel(const __grid_constant__ Scan<T> scan) {
  Scanner<T, W, kPass>(scan).run();
}

template <Pass kPass, typename T>
void launch_scan(const char* name, const Scan<T>& scan, Stream stream) {
  for_row_width(scan.places.width, [&]<int W>() {
    const int64_t slices = scan.parts * (W / slice_columns<T, W>());
    const int64_t stretches = scan.only_stretch >= 0 ? 1 : scan.places.num_stretches;
    launch_shared(name, scan_kernel<T, W, kPass>, stretches * scan.places.heads * slices,
                  Scanner<T, W, kPass>::kSharedBytes, stream, scan);
  });
}

}  // namespace

template <typename T>
void kda_forward(const KdaPlaces& places, const KdaFactors<T>& factors, const KdaStates<T>& states,
                 T* o, Stream stream) {
  launch_scan<Pass::kForward>("KDA states and outputs",
                              Scan<T>{.places = places,
                                      .factors = factors,
                                      .begin = states.before,
                                      .end = states.after,
                                      .o = o},
                              stream);
}

template <typename T>
void kda_map(const KdaPlaces& places, const KdaFactors<T>& factors, bool with_matrix,
             Accumulate<T>* map, Stream stream) {
  launch_scan<Pass::kMap>("KDA map of states",
                          Scan<T>{.places = places,
                                  .factors = factors,
                                  .end = map,
                                  .only_stretch = places.num_stretches - 1,
                                  .parts = with_matrix ? 2 : 1},
                          stream);
}

template <typename T>
void kda_gradient_map(const KdaPlaces& places, const KdaFactors<T>& factors, const T* d_o,
                      bool with_matrix, Accumulate<T>* map, Stream stream) {
  launch_scan<Pass::kGradientMap>("KDA map of gradients",
                                  Scan<T>{.places = places,
                                          .factors = factors,
                                          .end = map,
                                          .d_o = d_o,
                                          .only_stretch = 0,
                                          .parts = with_matrix ? 2 : 1},
                                  stream);
}

template <typename T>
void kda_fill_states(const KdaPlaces& places, const KdaFactors<T>& factors,
                     const Accumulate<T>* state_before, const KdaTrail<T>& trail, Stream stream) {
  launch_scan<Pass::kFill>(
      "KDA states again",
      Scan<T>{.places = places, .factors = factors, .begin = state_before, .trail = trail}, stream);
}

template <typename T>
void kda_retreat(const KdaPlaces& places, const KdaFactors<T>& factors, const T* d_o,
                 const KdaStates<T>& d_states, const KdaTrail<T>& trail, Stream stream) {
  launch_scan<Pass::kRetreat>("KDA gradients of states",
                              Scan<T>{.places = places,
                                      .factors = factors,
                                      .begin = d_states.before,
                                      .end = d_states.after,
                                      .d_o = d_o,
                                      .trail = trail},
                              stream);
}

#define LONGSPAN_INSTANTIATE(T)                                                                    \
  template void kda_forward(const KdaPlaces&, const KdaFactors<T>&, const KdaStates<T>&, T*,       \
                            Stream);                                                               \
  template void kda_map(const KdaPlaces&, const KdaFactors<T>&, bool, Accumulate<T>*, Stream);     \
  template void kda_gradient_map(const KdaPlaces&, const KdaFactors<T>&, const T*, bool,           \
                                 Accumulate<T>*, Stream);                                          \
  template void kda_fill_states(const KdaPlaces&, const KdaFactors<T>&, const Accumulate<T>*,      \
                                const KdaTrail<T>&, Stream);                                       \
  template void kda_retreat(const KdaPlaces&, const KdaFactors<T>&, const T*, const KdaStates<T>&, \
                            const KdaTrail<T>&, Stream);
LONGSPAN_INSTANTIATE(Bf16)
LONGSPAN_INSTANTIATE(float)
LONGSPAN_INSTANTIATE(double)
#undef LONGSPAN_INSTANTIATE

}  // namespace longspan::cuda
