// Backward of the pairs of rows and of the decays, a block for each chunk and head.
//
//   left_i  = sum_j dB_ij k_j exp(G_i - G_j) + dK+_i exp(G_i)
//   right_j = sum_i (dB_ij k_i + dP_ij q_i) exp(G_i - G_j) + dK-_j exp(G_C - G_j)
//   dq_i = sum_j dP_ij k_j exp(G_i - G_j) + dQ+_i exp(G_i);  dk = left + right
//   dg = sums, from each row to the chunk's end, of q dq + k (left - right), and at the end of what
//   K- and gamma add
//
// Blocks of 16 rows, the last one first. Pairs with other blocks' rows are products: both sides are
// decayed to a border between them. Pairs within the block are done column by column in registers.
#include "kernels/cuda/kda_tiles.cuh"

namespace longspan::cuda {
namespace {

template <typename T, int W>
class PairGradients {
  using A = Accumulate<T>;
  static constexpr int kRows = kda_chunk_rows<T>();
  static constexpr int kBlocks = kRows / kBlockRows;
  static constexpr int kStride = row_stride<T>(W);
  static constexpr int kPairStride = row_stride<T>(kRows);
  static constexpr int kResultStride = W + 8;
  static constexpr int64_t kOperandBytes = shared_bytes<T>(2 * (kRows - kBlockRows) * kStride);
  static constexpr int64_t kResultBytes = shared_bytes<A>(3 * kBlockRows * kResultStride);

 public:
  static constexpr int64_t kSharedBytes =
      BlockDecay<T, W>::kBytes + 2 * shared_bytes<T>(kRows * kStride) +
      2 * shared_bytes<T>(kRows * kPairStride) + shared_bytes<A>(kRows) +
      (kOperandBytes > kResultBytes ? kOperandBytes : kResultBytes);

  __device__ PairGradients(const KdaInput<T>& in, const KdaFactorGradients<T>& factors,
                           const KdaInputGradients<T>& out)
      : in_(in), factors_(factors), out_(out), at_(chunk_place(in.places)), decay_(space_) {
    k_ = space_.template take<T>(kRows * kStride);
    q_ = space_.template take<T>(kRows * kStride);
    d_p_ = space_.template take<T>(kRows * kPairStride);
    d_b_ = space_.template take<T>(kRows * kPairStride);
    beta_ = space_.template take<A>(kRows);
    operands_ = SharedSpace(space_).template take<T>(0);
    results_ = SharedSpace(space_).template take<A>(0);
  }

  __device__ void run() {
    load_inputs();
    differentiate_beta();
    begin_decay_sum();
    for (int block = kBlocks - 1; block >= 0; --block) {
      if (block * kBlockRows >= at_.chunk.rows) continue;
      __syncthreads();  // results of the block before have been read
      fill_operands(block);
      __syncthreads();
      multiply_blocks(block);
      __syncthreads();
      finish_block(block);
    }
  }

 private:
  __device__ void load_inputs() {
    const KdaPlaces& places = in_.places;
    const int rows = at_.chunk.rows;
    const int64_t projection = places.heads * places.tokens * W;
    const T* q = in_.qkv + at_.by_head(places, W);
    load_rows<T, W>(q, W, rows, kRows, q_);
    load_rows<T, W>(q + projection, W, rows, kRows, k_);
    const int64_t pairs = at_.by_head(places, kRows);
    load_rows<T, kRows>(factors_.p + pairs, kRows, rows, kRows, d_p_);
    load_rows<T, kRows>(factors_.b + pairs, kRows, rows, kRows, d_b_);
    for (int row = static_cast<int>(threadIdx.x); row < kRows; row += kThreads) {
      beta_[row] =
          row < rows ? widen(in_.beta[at_.by_token(places, 1) + row * places.heads]) : A{0};
    }
    decay_.fill(in_.g + at_.by_token(places, places.width), places.heads * places.width,
                places.width, rows);
  }

  // A row's value of a gradient of factors, zero beyond the chunk's end.
  __device__ A factor_row(const A* of, int row, int column) const {
    if (row >= at_.chunk.rows) return 0;
    return of[at_.by_head(in_.places, W) + row * W + column];
  }

  __device__ void differentiate_beta() {
    const KdaPlaces& places = in_.places;
    const int lane = static_cast<int>(threadIdx.x) % kWarp;
    for (int row = static_cast<int>(threadIdx.x) / kWarp; row < at_.chunk.rows;
         row += kThreads / kWarp) {
      A sum = 0;
#pragma unroll
      for (int column = lane; column < W; column += kWarp) {
        sum += factor_row(factors_.k_plus, row, column) * widen(k_[row * kStride + column]) *
               exp_of<T>(decay_.from_start(row, column));
      }
      sum = warp_sum(sum) + factors_.beta[at_.by_head(places, 1) + row];
      if (lane == 0) out_.beta[at_.by_token(places, 1) + row * places.heads] = narrow_to<T>(sum);
    }
  }

  __device__ int column() const {
    return static_cast<int>(threadIdx.x) % W;
  }

  // What gamma and K- add to the gradient of the decay of the chunk's last row.
  __device__ void begin_decay_sum() {
    if (static_cast<int>(threadIdx.x) >= W) return;
    decay_sum_ =
        exp_of<T>(decay_.whole(column())) * factors_.gamma[at_.by_chunk(in_.places, W) + column()];
#pragma unroll 16
    for (int row = 0; row < kRows; ++row) {
      decay_sum_ += factor_row(factors_.k_minus, row, column()) *
                    widen(k_[row * kStride + column()]) *
                    exp_of<T>(decay_.to_border(row, kBlocks, column()));
    }
  }

  // Rows before the block, decayed to its first border; then k and q of the rows after it, decayed
  // from its last.
  __device__ void fill_operands(int block) {
    for (int other = 0; other < block; ++other) fill_earlier(other, block);
    for (int other = block + 1; other < kBlocks; ++other) fill_later(other, block);
  }

  __device__ static int own_column() {
    return 2 * (static_cast<int>(threadIdx.x) % (W / 2));
  }

  __device__ void fill_earlier(int other, int block) {
    A whole[2];
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      whole[i] = decay_.from_block_to_border(other, block, own_column() + i);
    }
    for_pairs_of_block<W>(other, [&](int row, int column) {
      A k[2];
      load_pair<T>(k_ + row * kStride + column, k);
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        k[i] *= exp_of<T>(whole[i] - decay_.from_block(row, column + i));
      }
      store_pair<T>(operands_ + row * kStride + column, k[0], k[1]);
    });
  }

  __device__ void fill_later(int other, int block) {
    const int after = kRows - (block + 1) * kBlockRows;
    A before[2];
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      before[i] = decay_.between_borders(block + 1, other, own_column() + i);
    }
    for_pairs_of_block<W>(other, [&](int row, int column) {
      const int place = row - kBlockRows;  // the block itself is left out
      A k[2];
      A q[2];
      load_pair<T>(k_ + row * kStride + column, k);
      load_pair<T>(q_ + row * kStride + column, q);
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        const A factor = exp_of<T>(before[i] + decay_.from_block(row, column + i));
        k[i] *= factor;
        q[i] *= factor;
      }
      store_pair<T>(operands_ + place * kStride + column, k[0], k[1]);
      store_pair<T>(operands_ + (place + after) * kStride + column, q[0], q[1]);
    });
  }

  __device__ void multiply_blocks(int block) {
    const int first = block * kBlockRows;
    const int after = kRows - kBlockRows - first;
    const int next = first + kBlockRows;
    BlockSums<T, kBlockRows, W> sums[3];
    const Operand<T> earlier{operands_, kStride};
    sums[0].template add_product<kPlain, kPlain>(first, {d_p_ + first * kPairStride, kPairStride},
                                                 earlier);
    sums[1].template add_product<kPlain, kPlain>(first, {d_b_ + first * kPairStride, kPairStride},
                                                 earlier);
    sums[2].template add_product<kTransposed, kPlain>(
        after, {d_b_ + next * kPairStride + first, kPairStride},
        {operands_ + first * kStride, kStride});
    sums[2].template add_product<kTransposed, kPlain>(
        after, {d_p_ + next * kPairStride + first, kPairStride},
        {operands_ + (first + after) * kStride, kStride});
    __syncthreads();
#pragma unroll
    for (int i = 0; i < 3; ++i) {
      sums[i].for_each_pair([&](int row, int column, A& one, A& two) {
        store_pair_of_sums(result(i, row) + column, one, two);
      });
    }
  }

  __device__ static void store_pair_of_sums(A* to, A one, A two) {
    to[0] = one;
    to[1] = two;
  }

  __device__ A* result(int which, int row) const {
    return results_ + (which * kBlockRows + row) * kResultStride;
  }

  // One thread for each column does dq and left, another one right; then the first, all the rest.
  __device__ void finish_block(int block) {
    const int first = block * kBlockRows;
    const int part = static_cast<int>(threadIdx.x) / W;
    A k[kBlockRows];
    A decay[kBlockRows];
    if (part < 2) {
#pragma unroll
      for (int i = 0; i < kBlockRows; ++i) {
        k[i] = widen(k_[(first + i) * kStride + column()]);
        decay[i] = i == 0 ? A{1}
                          : exp_of<T>(decay_.from_block(first + i, column()) -
                                      decay_.from_block(first + i - 1, column()));
      }
    }
    A d_q[kBlockRows];
    A left[kBlockRows];
    if (part == 0) sum_earlier(block, k, decay, d_q, left);
    if (part == 1) sum_later(block, k, decay);
    __syncthreads();
    if (part == 0) write_rows(first, k, d_q, left);
  }

  // Row `row` of the block's square of dP or dB.
  __device__ static void load_square_row(const T* pairs, int row, A (&values)[kBlockRows]) {
    const T* from = pairs + row * kPairStride + row / kBlockRows * kBlockRows;
    if constexpr (std::is_same_v<T, Bf16>) {
      load<kBlockRows / 2>(from, values);
      load<kBlockRows / 2>(from + kBlockRows / 2, values + kBlockRows / 2);
    } else {
#pragma unroll
      for (int j = 0; j < kBlockRows; ++j) values[j] = from[j];
    }
  }

  __device__ void sum_earlier(int block, const A (&k)[kBlockRows], const A (&decay)[kBlockRows],
                              A (&d_q)[kBlockRows], A (&left)[kBlockRows]) const {
#pragma unroll
    for (int i = 0; i < kBlockRows; ++i) {
      const int row = block * kBlockRows + i;
      A d_p[kBlockRows];
      A d_b[kBlockRows];
      load_square_row(d_p_, row, d_p);
      load_square_row(d_b_, row, d_b);
      d_q[i] = d_p[i] * k[i];
      left[i] = 0;
      A between = 1;
#pragma unroll
      for (int j = i - 1; j >= 0; --j) {
        between *= decay[j + 1];
        const A decayed = k[j] * between;
        d_q[i] += d_p[j] * decayed;
        left[i] += d_b[j] * decayed;
      }
      const A from_block = exp_of<T>(decay_.from_block(row, column()));
      const A from_start = exp_of<T>(decay_.from_start(row, column()));
      d_q[i] += result(0, i)[column()] * from_block +
                factor_row(factors_.q_plus, row, column()) * from_start;
      left[i] += result(1, i)[column()] * from_block +
                 beta_[row] * factor_row(factors_.k_plus, row, column()) * from_start;
    }
  }

  __device__ void sum_later(int block, const A (&k)[kBlockRows],
                            const A (&decay)[kBlockRows]) const {
    A right[kBlockRows] = {};
#pragma unroll
    for (int i = 0; i < kBlockRows; ++i) {
      const int row = block * kBlockRows + i;
      const A q = widen(q_[row * kStride + column()]);
      A d_p[kBlockRows];
      A d_b[kBlockRows];
      load_square_row(d_p_, row, d_p);
      load_square_row(d_b_, row, d_b);
      right[i] += d_p[i] * q;
      A between = 1;
#pragma unroll
      for (int j = i - 1; j >= 0; --j) {
        between *= decay[j + 1];
        right[j] += (d_b[j] * k[i] + d_p[j] * q) * between;
      }
    }
#pragma unroll
    for (int j = 0; j < kBlockRows; ++j) {
      const int row = block * kBlockRows + j;
      right[j] += result(2, j)[column()] * exp_of<T>(decay_.to_border(row, block + 1, column())) +
                  factor_row(factors_.k_minus, row, column()) *
                      exp_of<T>(decay_.to_border(row, kBlocks, column()));
      result(2, j)[column()] = right[j];
    }
  }

  __device__ void write_rows(int first, const A (&k)[kBlockRows], const A (&d_q)[kBlockRows],
                             const A (&left)[kBlockRows]) {
    const KdaPlaces& places = in_.places;
    T* to_q = out_.qkv + at_.by_head(places, W) + column();
    T* to_k = to_q + places.heads * places.tokens * W;
    A* to_g = out_.g + at_.by_token(places, places.width) + column();
#pragma unroll
    for (int i = kBlockRows - 1; i >= 0; --i) {
      const int row = first + i;
      const A right = result(2, i)[column()];
      decay_sum_ += widen(q_[row * kStride + column()]) * d_q[i] + k[i] * (left[i] - right);
      if (row >= at_.chunk.rows) continue;
      to_q[row * W] = narrow_to<T>(d_q[i]);
      to_k[row * W] = narrow_to<T>(left[i] + right);
      if (column() < places.width) to_g[row * places.heads * places.width] = decay_sum_;
    }
  }

  const KdaInput<T>& in_;
  const KdaFactorGradients<T>& factors_;
  const KdaInputGradients<T>& out_;
  ChunkPlace at_;
  SharedSpace space_;
  BlockDecay<T, W> decay_;
  T* k_;
  T* q_;
  T* d_p_;
  T* d_b_;
  A* beta_;
  T* operands_;
  A* results_;  // in the operands' place
  A decay_sum_ = 0;
};

template <typename T, int W>
__global__ void __launch_bounds__(kThreads, std::is_same_v<T, Bf16> ? 2 : 1)
    pairs_kernel(const __grid_constant__ KdaInput<T> in,
                 const __grid_constant__ KdaFactorGradients<T> factors,
                 const __grid_constant__ KdaInputGradients<T> out) {
  PairGradients<T, W>(in, factors, out).run();
}

}  // namespace

template <typename T>
void kda_differentiate(const KdaInput<T>& in, const KdaFactorGradients<T>& factors,
                       const KdaInputGradients<T>& gradients, Stream stream) {
  for_row_width(in.places.width, [&]<int W>() {
    launch_shared("KDA gradients of pairs", pairs_kernel<T, W>,
                  in.places.num_chunks * in.places.heads, PairGradients<T, W>::kSharedBytes, stream,
                  in, factors, gradients);
  });
}

#define LONGSPAN_INSTANTIATE(T)                                                     \
  template void kda_differentiate(const KdaInput<T>&, const KdaFactorGradients<T>&, \
                                  const KdaInputGradients<T>&, Stream);
LONGSPAN_INSTANTIATE(Bf16)
LONGSPAN_INSTANTIATE(float)
LONGSPAN_INSTANTIATE(double)
#undef LONGSPAN_INSTANTIATE

}  // namespace longspan::cuda
