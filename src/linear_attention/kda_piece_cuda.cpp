#include "linear_attention/kda_piece_cuda.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <numeric>

#include "base/check.h"
#include "base/error.h"
#include "device/device.h"
#include "device/device_types.h"
#include "kernels/cuda/kda.h"
#include "kernels/cuda/kda_inputs.h"

namespace longspan {
namespace {

using cuda::Accumulate;

// On a GPU without them a UserError.
void require_kernels(const LinearAttentionShape& shape, at::Device device) {
  static const GpuInfo gpu = gpu_info(device.has_index() ? device.index() : 0);
  if (gpu.major < 9) {
    throw UserError(
        text("the kernels of linear attention need 227 KiB of shared memory a block, as ",
             "GPUs from compute capability 9.0 on have, but ", gpu.name, " has ", gpu.major, ".",
             gpu.minor, "; set layout.device = \"cpu\""));
  }
  if (cuda::kda_row_width(shape.key_width) != 0 && shape.conv_taps == cuda::kKdaTaps) return;
  throw UserError(text("linear attention on a GPU has kernels for heads up to 128 wide behind ",
                       "convolutions of ", cuda::kKdaTaps, " taps, but the model has width ",
                       shape.key_width, " and ", shape.conv_taps,
                       " taps; set layout.device = \"cpu\""));
}

template <typename Value>
Value* data_or_null(const at::Tensor& tensor) {
  return tensor.defined() ? device_data<Value>(tensor) : nullptr;
}

// As cuda::KdaPlaces has them.
struct ChunkList {
  std::vector<cuda::KdaChunk> chunks;
  std::vector<int32_t> first_chunks;
  std::vector<int32_t> longest_first;
};

ChunkList list_chunks(const std::vector<Range>& stretches, int64_t most_rows) {
  ChunkList list;
  for (size_t idx = 0; idx < stretches.size(); ++idx) {
    list.first_chunks.push_back(static_cast<int32_t>(list.chunks.size()));
    const Range& stretch = stretches[idx];
    for (int64_t row = stretch.begin; row < stretch.end; row += most_rows) {
      const int64_t rows = std::min(most_rows, stretch.end - row);
      const int first = row == stretch.begin ? 1 : 0;
      const int last = row + rows == stretch.end ? 2 : 0;
      list.chunks.push_back({static_cast<int32_t>(row), static_cast<int32_t>(rows),
                             static_cast<int32_t>(idx), first + last});
    }
  }
  list.first_chunks.push_back(static_cast<int32_t>(list.chunks.size()));
  list.longest_first.resize(stretches.size());
  std::iota(list.longest_first.begin(), list.longest_first.end(), 0);
  std::stable_sort(list.longest_first.begin(), list.longest_first.end(), [&](int32_t a, int32_t b) {
    return stretches[static_cast<size_t>(a)].size() > stretches[static_cast<size_t>(b)].size();
  });
  return list;
}

class CudaKdaPiece final : public KdaPiece {
 public:
  explicit CudaKdaPiece(Setup setup);

  at::Tensor map(bool with_matrix) const override;
  at::Tensor gradient_map(const at::Tensor& d_o_THV, bool with_matrix) const override;
  std::pair<at::Tensor, at::Tensor> forward(const at::Tensor& state_before,
                                            bool wants_state) const override;
  Gradients backward(const at::Tensor& d_o_THV, const at::Tensor& state_before,
                     const at::Tensor& d_state_after) const override;

 private:
  int64_t heads() const { return setup_.shape.heads; }
  int64_t width() const { return setup_.shape.key_width; }
  int64_t row_width() const { return cuda::kda_row_width(width()); }
  at::TensorOptions sums() const { return state_options(setup_.inputs.beta_TH); }
  at::ScalarType type() const { return setup_.inputs.beta_TH.scalar_type(); }

  at::Tensor empty(at::IntArrayRef sizes) const { return at::empty(sizes, setup_.options()); }
  at::Tensor empty_rows() const { return empty({heads(), setup_.tokens(), row_width()}); }
  at::Tensor empty_pairs() const { return empty({heads(), setup_.tokens(), chunk_rows_}); }
  at::Tensor empty_sums(at::IntArrayRef sizes) const { return at::empty(sizes, sums()); }
  at::Tensor empty_borders() const {
    return empty({cuda::kda_borders(places_), heads(), row_width(), row_width()});
  }

  template <typename T>
  cuda::KdaConvolution<T> convolution() const;
  template <typename T>
  cuda::KdaInput<T> input() const;
  template <typename T>
  cuda::KdaFactors<T> factors() const;
  template <typename T>
  void prepare();
  template <typename T>
  void differentiate(const at::Tensor& d_o, const at::Tensor& state_before,
                     const at::Tensor& d_state_after, Gradients& gradients) const;

  Setup setup_;
  int64_t chunk_rows_ = 0;
  at::Tensor chunks_;
  at::Tensor first_chunks_;
  at::Tensor longest_first_;
  cuda::KdaPlaces places_;
  at::Tensor qkv_3HTW_;
  // Of the chunks, as cuda::KdaFactors has them.
  at::Tensor w_;
  at::Tensor u_;
  at::Tensor q_plus_;
  at::Tensor k_minus_;
  at::Tensor p_;
  at::Tensor solved_;
  at::Tensor b_;
  at::Tensor gamma_;
};

CudaKdaPiece::CudaKdaPiece(Setup setup) : setup_(std::move(setup)) {
  require_kernels(setup_.shape, setup_.inputs.beta_TH.device());
  for_device_type(type(), [&]<typename T>() { prepare<T>(); });
}

template <typename T>
void CudaKdaPiece::prepare() {
  chunk_rows_ = cuda::kda_chunk_rows<T>();
  const ChunkList list = list_chunks(setup_.stretches, chunk_rows_);
  const at::Device device = setup_.inputs.beta_TH.device();
  chunks_ = upload_bytes(std::as_bytes(std::span(list.chunks)), device);
  first_chunks_ = upload(std::span<const int32_t>(list.first_chunks), device);
  longest_first_ = upload(std::span<const int32_t>(list.longest_first), device);
  places_ = {static_cast<const cuda::KdaChunk*>(chunks_.const_data_ptr()),
             std::ssize(list.chunks),
             device_data<const int32_t>(first_chunks_),
             device_data<const int32_t>(longest_first_),
             std::ssize(setup_.stretches),
             setup_.tokens(),
             heads(),
             width()};
  qkv_3HTW_ = empty({3, heads(), setup_.tokens(), row_width()});
  w_ = empty_rows();
  u_ = empty_rows();
  q_plus_ = empty_rows();
  k_minus_ = empty_rows();
  p_ = empty_pairs();
  solved_ = empty_pairs();
  b_ = empty_pairs();
  gamma_ = empty_sums({places_.num_chunks, heads(), row_width()});
  if (places_.num_chunks == 0) return;
  cuda::kda_inputs_forward(places_, convolution<T>(), device_data<T>(qkv_3HTW_), current_stream());
  cuda::kda_prepare(input<T>(), factors<T>(), current_stream());
}

template <typename T>
cuda::KdaConvolution<T> CudaKdaPiece::convolution() const {
  return {device_data<const T>(setup_.inputs.qkv_T3HK), device_data<const T>(setup_.before_N3HK),
          setup_.before_N3HK.size(0), device_data<const T>(setup_.weight_3HNK)};
}

template <typename T>
cuda::KdaInput<T> CudaKdaPiece::input() const {
  return {places_, device_data<const T>(qkv_3HTW_),
          device_data<const Accumulate<T>>(setup_.inputs.g_THK),
          device_data<const T>(setup_.inputs.beta_TH)};
}

template <typename T>
cuda::KdaFactors<T> CudaKdaPiece::factors() const {
  return {device_data<T>(w_),      device_data<T>(u_),
          device_data<T>(q_plus_), device_data<T>(k_minus_),
          device_data<T>(p_),      device_data<T>(solved_),
          device_data<T>(b_),      device_data<Accumulate<T>>(gamma_)};
}

at::Tensor CudaKdaPiece::map(bool with_matrix) const {
  at::Tensor map = empty_sums({heads(), width(), width() * (with_matrix ? 2 : 1)});
  for_device_type(type(), [&]<typename T>() {
    cuda::kda_map(places_, factors<T>(), with_matrix, device_data<Accumulate<T>>(map),
                  current_stream());
  });
  return map;
}

at::Tensor CudaKdaPiece::gradient_map(const at::Tensor& d_o_THV, bool with_matrix) const {
  at::Tensor map = empty_sums({heads(), width(), width() * (with_matrix ? 2 : 1)});
  for_device_type(type(), [&]<typename T>() {
    cuda::kda_gradient_map(places_, factors<T>(), device_data<const T>(d_o_THV), with_matrix,
                           device_data<Accumulate<T>>(map), current_stream());
  });
  return map;
}

std::pair<at::Tensor, at::Tensor> CudaKdaPiece::forward(const at::Tensor& state_before,
                                                        bool wants_state) const {
  at::Tensor o_THV = empty({setup_.tokens(), heads(), width()});
  at::Tensor state_after;
  if (wants_state) state_after = empty_sums({heads(), width(), width()});
  for_device_type(type(), [&]<typename T>() {
    using A = Accumulate<T>;
    cuda::kda_forward<T>(places_, factors<T>(),
                         {data_or_null<const A>(state_before), data_or_null<A>(state_after)},
                         device_data<T>(o_THV), current_stream());
  });
  return {o_THV, state_after};
}

KdaPiece::Gradients CudaKdaPiece::backward(const at::Tensor& d_o_THV,
                                           const at::Tensor& state_before,
                                           const at::Tensor& d_state_after) const {
  LONGSPAN_CHECK(d_o_THV.sizes() == at::IntArrayRef({setup_.tokens(), heads(), width()}) &&
                     d_o_THV.scalar_type() == type(),
                 "gradient of the output ", d_o_THV.toString(), " ", d_o_THV.sizes());
  Gradients gradients{{at::empty_like(setup_.inputs.qkv_T3HK), at::empty_like(setup_.inputs.g_THK),
                       at::empty_like(setup_.inputs.beta_TH)},
                      empty_sums(setup_.before_N3HK.sizes()),
                      at::zeros(setup_.weight_3HNK.sizes(), sums()),
                      state_before.defined() ? at::empty_like(state_before) : at::Tensor()};
  if (places_.num_chunks == 0) {
    gradients.before_N3HK.zero_();
    return gradients;
  }
  for_device_type(type(), [&]<typename T>() {
    differentiate<T>(d_o_THV, state_before, d_state_after, gradients);
  });
  return gradients;
}

template <typename T>
void CudaKdaPiece::differentiate(const at::Tensor& d_o, const at::Tensor& state_before,
                                 const at::Tensor& d_state_after, Gradients& gradients) const {
  using A = Accumulate<T>;
  const cuda::Stream stream = current_stream();
  const at::Tensor states = empty_borders();
  const at::Tensor d_states = empty_borders();
  const at::Tensor moved = empty_rows();
  const at::Tensor d_moved = empty_rows();
  const cuda::KdaTrail<T> trail{device_data<T>(states), device_data<T>(moved),
                                device_data<T>(d_states), device_data<T>(d_moved)};
  const T* d_output = device_data<const T>(d_o);
  const A* state = data_or_null<const A>(state_before);
  const A* d_state = data_or_null<const A>(d_state_after);
  cuda::kda_fill_states(places_, factors<T>(), state, trail, stream);
  cuda::kda_retreat<T>(places_, factors<T>(), d_output,
                       {d_state, data_or_null<A>(gradients.state_before)}, trail, stream);

  const std::vector<int64_t> rows = {heads(), setup_.tokens(), row_width()};
  const at::Tensor d_q_plus = empty_sums(rows);
  const at::Tensor d_k_minus = empty_sums(rows);
  const at::Tensor d_k_plus = empty_sums(rows);
  const at::Tensor d_beta = empty_sums({heads(), setup_.tokens()});
  const at::Tensor d_gamma = empty_sums(gamma_.sizes());
  const at::Tensor d_p = empty_pairs();
  const at::Tensor d_b = empty_pairs();
  const at::Tensor d_qkv = at::empty_like(qkv_3HTW_);
  const cuda::KdaFactorGradients<T> of_factors{device_data<A>(d_q_plus), device_data<A>(d_k_minus),
                                               device_data<A>(d_k_plus), device_data<A>(d_beta),
                                               device_data<A>(d_gamma),  device_data<T>(d_p),
                                               device_data<T>(d_b)};
  const cuda::KdaInputGradients<T> of_inputs{device_data<T>(d_qkv),
                                             device_data<A>(gradients.inputs.g_THK),
                                             device_data<T>(gradients.inputs.beta_TH)};
  cuda::kda_products(input<T>(), factors<T>(), trail, state, d_output, d_state, of_factors,
                     of_inputs, stream);
  cuda::kda_differentiate(input<T>(), of_factors, of_inputs, stream);

  const at::Tensor partials = empty_sums({cuda::kda_convolution_partials(places_)});
  cuda::kda_inputs_backward<T>(
      places_, convolution<T>(), device_data<const T>(d_qkv),
      {device_data<T>(gradients.inputs.qkv_T3HK), device_data<A>(gradients.before_N3HK),
       device_data<A>(partials), device_data<A>(gradients.weight_3HNK)},
      stream);
}

}  // namespace

std::unique_ptr<KdaPiece> make_cuda_kda_piece(KdaPiece::Setup setup) {
  return std::make_unique<CudaKdaPiece>(std::move(setup));
}

bool cuda_kda_is_fast(const LinearAttentionShape& shape, at::ScalarType type, at::Device device) {
  require_kernels(shape, device);
  return type == at::kBFloat16;
}

}  // namespace longspan
