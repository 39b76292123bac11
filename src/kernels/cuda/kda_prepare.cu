// What each chunk gives before any state is known: pairs of rows, the triangular inverse, W and U.
#include "kernels/cuda/kda_tiles.cuh"

namespace longspan::cuda {
namespace {

template <typename T, int W>
class Preparation {
  using A = Accumulate<T>;
  static constexpr int kRows = kda_chunk_rows<T>();
  static constexpr int kBlocks = kRows / kBlockRows;
  static constexpr int kTile = kRows * row_stride<T>(W);
  static constexpr int kPairStride = kRows + 1;
  static constexpr int kEarlier = (kRows - kBlockRows) * row_stride<T>(W);
  static constexpr int kOwn = kBlockRows * row_stride<T>(W);
  // The operands of a block of rows; later the inverse and, while it is made, products on the way.
  static constexpr int64_t kOperandBytes = shared_bytes<T>(kEarlier + 2 * kOwn);
  static constexpr int64_t kInverseBytes =
      shared_bytes<T>(kRows * row_stride<T>(kRows)) + shared_bytes<A>(kRows / 2 * (kRows / 2 + 1));

 public:
  static constexpr int64_t kSharedBytes =
      BlockDecay<T, W>::kBytes + 2 * shared_bytes<T>(kTile) + shared_bytes<A>(kRows) +
      shared_bytes<A>(kRows * kPairStride) +
      (kOperandBytes > kInverseBytes ? kOperandBytes : kInverseBytes);

  __device__ Preparation(const KdaInput<T>& in, const KdaFactors<T>& out)
      : in_(in), out_(out), at_(chunk_place(in.places)), decay_(space_) {
    k_ = space_.template take<T>(kTile);
    q_ = space_.template take<T>(kTile);
    beta_ = space_.template take<A>(kRows);
    pairs_ = space_.template take<A>(kRows * kPairStride);
  }

  __device__ void run() {
    load_inputs();
    write_decayed_rows();
    fill_earlier_pairs();
    fill_diagonal_pairs();
    __syncthreads();
    scale_pairs();
    invert();
    solve();
  }

 private:
  __device__ const T* rows_of(int projection) const {
    const KdaPlaces& places = in_.places;
    return in_.qkv + (projection * places.heads * places.tokens) * W + at_.by_head(places, W);
  }

  // The first of the two columns that for_pairs_of_block gives the thread.
  __device__ static int own_column() { return 2 * (static_cast<int>(threadIdx.x) % (W / 2)); }

  __device__ void load_inputs() {
    const KdaPlaces& places = in_.places;
    load_rows<T, W>(rows_of(0), W, at_.chunk.rows, kRows, q_);
    load_rows<T, W>(rows_of(1), W, at_.chunk.rows, kRows, k_);
    for (int row = static_cast<int>(threadIdx.x); row < kRows; row += kThreads) {
      const bool real = row < at_.chunk.rows;
      beta_[row] = real ? widen(in_.beta[at_.by_token(places, 1) + row * places.heads]) : A{0};
    }
    // The pairs above the diagonal.
    T* p = out_.p + at_.by_head(places, kRows);
    const T zero = narrow_to<T>(A{0});
    for (int i = static_cast<int>(threadIdx.x); i < at_.chunk.rows * kRows; i += kThreads) {
      p[i] = zero;
    }
    decay_.fill(in_.g + at_.by_token(places, places.width), places.heads * places.width,
                places.width, at_.chunk.rows);
  }

  // Q+, K- and gamma.
  __device__ void write_decayed_rows() {
    T* q_plus = out_.q_plus + at_.by_head(in_.places, W);
    T* k_minus = out_.k_minus + at_.by_head(in_.places, W);
    for (int block = 0; block < kBlocks; ++block) {
      A before[2];
      A whole[2];
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        before[i] = decay_.between_borders(0, block, own_column() + i);
        whole[i] = decay_.from_block_to_border(block, kBlocks, own_column() + i);
      }
      for_pairs_of_block<W>(block, [&](int row, int column) {
        if (row >= at_.chunk.rows) return;
        A q[2];
        A k[2];
        load_pair<T>(q_ + row * row_stride<T>(W) + column, q);
        load_pair<T>(k_ + row * row_stride<T>(W) + column, k);
#pragma unroll
        for (int i = 0; i < 2; ++i) {
          const A local = decay_.from_block(row, column + i);
          q[i] *= exp_of<T>(before[i] + local);
          k[i] *= exp_of<T>(whole[i] - local);
        }
        store<2>(q_plus + row * W + column, q);
        store<2>(k_minus + row * W + column, k);
      });
    }
    A* gamma = out_.gamma + at_.by_chunk(in_.places, W);
    for (int column = static_cast<int>(threadIdx.x); column < W; column += kThreads) {
      gamma[column] = exp_of<T>(decay_.whole(column));
    }
  }

  __device__ void fill_earlier(int block, int border, T* rows) {
    A whole[2];
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      whole[i] = decay_.from_block_to_border(block, border, own_column() + i);
    }
    for_pairs_of_block<W>(block, [&](int row, int column) {
      A k[2];
      load_pair<T>(k_ + row * row_stride<T>(W) + column, k);
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        k[i] *= exp_of<T>(whole[i] - decay_.from_block(row, column + i));
      }
      store_pair<T>(rows + row * row_stride<T>(W) + column, k[0], k[1]);
    });
  }

  __device__ void fill_own(int block, T* own_k, T* own_q) {
    for_pairs_of_block<W>(block, [&](int row, int column) {
      const int place = row * row_stride<T>(W) + column;
      const int own_place = (row - block * kBlockRows) * row_stride<T>(W) + column;
      A k[2];
      A q[2];
      load_pair<T>(k_ + place, k);
      load_pair<T>(q_ + place, q);
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        const A factor = exp_of<T>(decay_.from_block(row, column + i));
        k[i] *= factor;
        q[i] *= factor;
      }
      store_pair<T>(own_k + own_place, k[0], k[1]);
      store_pair<T>(own_q + own_place, q[0], q[1]);
    });
  }

  // Each block of rows with the rows before it, both decayed to the border between them.
  __device__ void fill_earlier_pairs() {
    constexpr int kStride = row_stride<T>(W);
    SharedSpace space = space_;
    T* earlier = space.template take<T>(kEarlier + 2 * kOwn);
    T* own_k = earlier + kEarlier;
    T* own_q = own_k + kOwn;
    for (int block = 1; block < kBlocks; ++block) {
      const int first = block * kBlockRows;
      for (int other = 0; other < block; ++other) fill_earlier(other, block, earlier);
      fill_own(block, own_k, own_q);
      __syncthreads();
      BlockSums<T, kBlockRows, kRows> of_k;
      BlockSums<T, kBlockRows, kRows> of_q;
      const Operand<T> before{earlier, kStride};
      of_k.template add_product<kPlain, kTransposed>(W, {own_k, kStride}, before, first);
      of_q.template add_product<kPlain, kTransposed>(W, {own_q, kStride}, before, first);
      of_k.for_each_pair([&](int i, int j, A& one, A& two) {
        if (j >= first) return;
        pairs_[(first + i) * kPairStride + j] = one;
        pairs_[(first + i) * kPairStride + j + 1] = two;
      });
      of_q.for_each_pair([&](int i, int j, A& one, A& two) {
        if (j >= first || first + i >= at_.chunk.rows) return;
        A values[2] = {one, two};
        store<2>(out_.p + at_.by_head(in_.places, kRows) + (first + i) * kRows + j, values);
      });
      __syncthreads();
    }
  }

  // Pairs within blocks, four rows by four: first squares of different rows, then those on the
  // diagonal. Sixteen lanes share a square's columns.
  __device__ void fill_diagonal_pairs() {
    constexpr int kSquares = kBlockRows / kSide;
    constexpr int kApart = kSquares * (kSquares - 1) / 2;
    for (int unit = static_cast<int>(threadIdx.x) / kLanes; unit < kBlocks * (kApart + kSquares);
         unit += kThreads / kLanes) {
      A sums[2 * kSide * kSide] = {};  // of k, then of q
      int first;
      int down = 1;
      int across;
      if (unit < kBlocks * kApart) {
        first = unit / kApart * kBlockRows;
        across = unit % kApart;
        while (across >= down) across -= down++;
        multiply_rows_apart(first + kSide * down, first + kSide * across, sums);
      } else {
        first = (unit - kBlocks * kApart) / kSquares * kBlockRows;
        down = across = (unit - kBlocks * kApart) % kSquares;
        multiply_same_rows(first + kSide * down, sums);
      }
      put_square(first + kSide * down, first + kSide * across, sums);
    }
  }

  static constexpr int kSide = 4;
  static constexpr int kLanes = 16;
  using Square = A[2 * kSide * kSide];

  __device__ static int square_lane() {
    return static_cast<int>(threadIdx.x) % kLanes;
  }

  // Both sides are decayed to the last of the earlier rows.
  __device__ void multiply_rows_apart(int i, int j, Square& sums) const {
    for (int column = square_lane(); column < W; column += kLanes) {
      const A border = decay_.from_block(j + kSide - 1, column);
      A k_j[kSide];
#pragma unroll
      for (int c = 0; c < kSide; ++c) {
        k_j[c] = widen(k_[(j + c) * row_stride<T>(W) + column]) *
                 exp_of<T>(border - decay_.from_block(j + c, column));
      }
#pragma unroll
      for (int r = 0; r < kSide; ++r) {
        const A factor = exp_of<T>(decay_.from_block(i + r, column) - border);
        const A k_i = widen(k_[(i + r) * row_stride<T>(W) + column]) * factor;
        const A q_i = widen(q_[(i + r) * row_stride<T>(W) + column]) * factor;
#pragma unroll
        for (int c = 0; c < kSide; ++c) {
          sums[r * kSide + c] += k_i * k_j[c];
          sums[(kSide + r) * kSide + c] += q_i * k_j[c];
        }
      }
    }
  }

  __device__ void multiply_same_rows(int i, Square& sums) const {
    for (int column = square_lane(); column < W; column += kLanes) {
      A k[kSide];
      A q[kSide];
      A decay[kSide];  // by one row
#pragma unroll
      for (int r = 0; r < kSide; ++r) {
        k[r] = widen(k_[(i + r) * row_stride<T>(W) + column]);
        q[r] = widen(q_[(i + r) * row_stride<T>(W) + column]);
        decay[r] = r == 0 ? A{1}
                          : exp_of<T>(decay_.from_block(i + r, column) -
                                      decay_.from_block(i + r - 1, column));
      }
#pragma unroll
      for (int c = 0; c < kSide; ++c) {
        A decayed = k[c];
        sums[(kSide + c) * kSide + c] += q[c] * decayed;
#pragma unroll
        for (int r = c + 1; r < kSide; ++r) {
          decayed *= decay[r];
          sums[r * kSide + c] += k[r] * decayed;
          sums[(kSide + r) * kSide + c] += q[r] * decayed;
        }
      }
    }
  }

  // Adds the lanes' sums: at each step a lane gives away half of its values, so lane l ends with
  // values 2 l and 2 l + 1.
  template <int kHalf>
  __device__ static void halve_sums(Square& sums) {
    constexpr int kDistance = kHalf / 2;
    const bool upper = (square_lane() & kDistance) != 0;
#pragma unroll
    for (int v = 0; v < kHalf; ++v) {
      const A kept = upper ? sums[v + kHalf] : sums[v];
      const A given = upper ? sums[v] : sums[v + kHalf];
      sums[v] = kept + __shfl_xor_sync(0xffffffffu, given, kDistance);
    }
    if constexpr (kDistance > 1) halve_sums<kDistance>(sums);
  }

  __device__ void put_square(int first_i, int first_j, Square& sums) {
    static_assert(kLanes == kSide * kSide);
    halve_sums<kLanes>(sums);
#pragma unroll
    for (int v = 0; v < 2; ++v) {
      const int place = 2 * square_lane() + v;
      const int i = first_i + place / kSide % kSide;
      const int j = first_j + place % kSide;
      if (place < kSide * kSide) {
        if (i > j) pairs_[i * kPairStride + j] = sums[v];
      } else if (i >= j && i < at_.chunk.rows) {
        out_.p[at_.by_head(in_.places, kRows) + i * kRows + j] = narrow_to<T>(sums[v]);
      }
    }
  }

  // Writes B; A = beta B stays.
  __device__ void scale_pairs() {
    T* b = out_.b == nullptr ? nullptr : out_.b + at_.by_head(in_.places, kRows);
    for (int at = static_cast<int>(threadIdx.x); at < kRows * kRows; at += kThreads) {
      const int row = at / kRows;
      const int column = at % kRows;
      A value = 0;
      if (column < row) {
        value = pairs_[row * kPairStride + column];
        pairs_[row * kPairStride + column] = beta_[row] * value;
      }
      if (b != nullptr && row < at_.chunk.rows) b[at] = narrow_to<T>(value);
    }
    __syncthreads();
  }

  // (I + A)^-1 in place of A: blocks on the diagonal by substitution, then squares of two, four.
  __device__ void invert() {
    const int thread = static_cast<int>(threadIdx.x);
    A* diagonal = pairs_ + thread / kBlockRows * kBlockRows * (kPairStride + 1);
    const int column = thread % kBlockRows;
    A x[kBlockRows];
    if (thread < kRows) {
#pragma unroll
      for (int i = 0; i < kBlockRows; ++i) {
        A sum = 0;
#pragma unroll
        for (int j = 0; j < i; ++j) sum += diagonal[i * kPairStride + j] * x[j];
        x[i] = i == column ? A{1} : i < column ? A{0} : -sum;
      }
    }
    __syncthreads();
    if (thread < kRows) {
#pragma unroll
      for (int i = 0; i < kBlockRows; ++i) diagonal[i * kPairStride + column] = x[i];
    }
    __syncthreads();
    SharedSpace space = space_;
    space.template take<T>(kRows * row_stride<T>(kRows));  // where the inverse will stand
    A* products = space.template take<A>(kRows / 2 * (kRows / 2 + 1));
    join_squares<kBlockRows>(products);
    if constexpr (kRows > 2 * kBlockRows) join_squares<2 * kBlockRows>(products);
  }

  // Inverse of [[X, 0], [Y, Z]] is [[X', 0], [-Z' Y X', Z']].
  template <int kSize>
  __device__ void join_squares(A* products) {
    constexpr int kCount = kRows / (2 * kSize) * kSize * kSize;
    for (int at = static_cast<int>(threadIdx.x); at < kCount; at += kThreads) {
      const int first = at / (kSize * kSize) * 2 * kSize;
      const int row = at / kSize % kSize;
      const int column = at % kSize;
      const A* y = pairs_ + (first + kSize + row) * kPairStride + first;
      const A* x = pairs_ + first * kPairStride + first + column;
      A sum = 0;
      for (int k = column; k < kSize; ++k) sum += y[k] * x[k * kPairStride];
      products[at] = sum;
    }
    __syncthreads();
    for (int at = static_cast<int>(threadIdx.x); at < kCount; at += kThreads) {
      const int first = at / (kSize * kSize) * 2 * kSize;
      const int row = at / kSize % kSize;
      const int column = at % kSize;
      const A* z = pairs_ + (first + kSize + row) * kPairStride + first + kSize;
      const A* product = products + at / (kSize * kSize) * kSize * kSize + column;
      A sum = 0;
      for (int k = 0; k <= row; ++k) sum += z[k] * product[k * kSize];
      pairs_[(first + kSize + row) * kPairStride + first + column] = -sum;
    }
    __syncthreads();
  }

  // W = (I + A)^-1 (beta K+), U = (I + A)^-1 (beta v).
  __device__ void solve() {
    constexpr int kStride = row_stride<T>(W);
    constexpr int kInverseStride = row_stride<T>(kRows);
    SharedSpace space = space_;
    T* inverse = space.template take<T>(kRows * kInverseStride);
    T* solved = out_.solved == nullptr ? nullptr : out_.solved + at_.by_head(in_.places, kRows);
    for (int at = static_cast<int>(threadIdx.x); at < kRows * kRows; at += kThreads) {
      const int row = at / kRows;
      const int column = at % kRows;
      const A value = column <= row ? pairs_[row * kPairStride + column] : A{0};
      inverse[row * kInverseStride + column] = narrow_to<T>(value);
      if (solved != nullptr && row < at_.chunk.rows) solved[at] = narrow_to<T>(value);
    }
    for (int block = 0; block < kBlocks; ++block) fill_right_sides(block);
    __syncthreads();
    write_product(inverse, k_, out_.w);
    write_product(inverse, q_, out_.u);
  }

  // beta K+ in place of k, beta v in place of q.
  __device__ void fill_right_sides(int block) {
    const T* v = rows_of(2);
    A before[2];
#pragma unroll
    for (int i = 0; i < 2; ++i) before[i] = decay_.between_borders(0, block, own_column() + i);
    for_pairs_of_block<W>(block, [&](int row, int column) {
      const int place = row * row_stride<T>(W) + column;
      A k[2];
      A values[2] = {};
      load_pair<T>(k_ + place, k);
      if (row < at_.chunk.rows) load<2>(v + row * W + column, values);
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        k[i] *= beta_[row] * exp_of<T>(before[i] + decay_.from_block(row, column + i));
      }
      store_pair<T>(k_ + place, k[0], k[1]);
      store_pair<T>(q_ + place, beta_[row] * values[0], beta_[row] * values[1]);
    });
  }

  __device__ void write_product(const T* inverse, const T* rows, T* result) {
    BlockSums<T, kRows, W> sums;
    sums.template add_product<kPlain, kPlain>(kRows, {inverse, row_stride<T>(kRows)},
                                              {rows, row_stride<T>(W)});
    T* to = result + at_.by_head(in_.places, W);
    sums.for_each_pair([&](int row, int column, A& one, A& two) {
      A values[2] = {one, two};
      if (row < at_.chunk.rows) store<2>(to + row * W + column, values);
    });
  }

  const KdaInput<T>& in_;
  const KdaFactors<T>& out_;
  ChunkPlace at_;
  SharedSpace space_;
  BlockDecay<T, W> decay_;
  T* k_;
  T* q_;
  A* beta_;
  A* pairs_;  // B, then A, then the inverse [C, C]
};

template <typename T, int W>
__global__ void __launch_bounds__(kThreads, std::is_same_v<T, Bf16> ? 2 : 1)
    prepare_kernel(const __grid_constant__ KdaInput<T> in,
                   const __grid_constant__ KdaFactors<T> out) {
  Preparation<T, W>(in, out).run();
}

}  // namespace

template <typename T>
void kda_prepare(const KdaInput<T>& in, const KdaFactors<T>& factors, Stream stream) {
  for_row_width(in.places.width, [&]<int W>() {
    launch_shared("KDA chunks", prepare_kernel<T, W>, in.places.num_chunks * in.places.heads,
                  Preparation<T, W>::kSharedBytes, stream, in, factors);
  });
}

#define LONGSPAN_INSTANTIATE(T) \
  template void kda_prepare(const KdaInput<T>&, const KdaFactors<T>&, Stream);
LONGSPAN_INSTANTIATE(Bf16)
LONGSPAN_INSTANTIATE(float)
LONGSPAN_INSTANTIATE(double)
#undef LONGSPAN_INSTANTIATE

}  // namespace longspan::cuda
