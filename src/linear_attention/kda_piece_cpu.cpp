#include "linear_attention/kda_piece_cpu.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/zeros_like.h>

#include <cmath>

#include "base/check.h"
#include "kernels/cpu/kda.h"
#include "kernels/cpu/kda_rows.h"
#include "kernels/cpu/short_convolution.h"
#include "layers/parallel_ranges.h"
#include "layers/real_types.h"

namespace longspan {
namespace {

constexpr int64_t kProjections = 3;  // q, k, v

double scale_of(const LinearAttentionShape& shape, int64_t projection) {
  return projection == 0 ? 1 / std::sqrt(static_cast<double>(shape.key_width)) : 1.0;
}

// One head of one projection from row `first` on, in [rows, 3, H, K].
template <typename Real>
Strip<const Real> head_of(const at::Tensor& rows_N3HK, int64_t projection_head, int64_t first) {
  const int64_t stride = rows_N3HK.size(1) * rows_N3HK.size(2) * rows_N3HK.size(3);
  return {rows_N3HK.const_data_ptr<Real>() + first * stride + projection_head * rows_N3HK.size(3),
          stride};
}

template <typename Real>
Strip<Real> mutable_head_of(const at::Tensor& rows_N3HK, int64_t projection_head, int64_t first) {
  const Strip<const Real> strip = head_of<Real>(rows_N3HK, projection_head, first);
  return {rows_N3HK.mutable_data_ptr<Real>() + (strip.data - rows_N3HK.const_data_ptr<Real>()),
          strip.stride};
}

template <typename Real>
Real* at_row(const at::Tensor& matrices, int64_t matrix, int64_t row, int64_t width) {
  return matrices.mutable_data_ptr<Real>() + (matrix * matrices.size(-2) + row) * width;
}

template <typename Real>
const Real* data_or_null(const at::Tensor& states, int64_t head) {
  if (!states.defined()) return nullptr;
  return states.const_data_ptr<Real>() + head * states.size(1) * states.size(2);
}

template <typename Real>
Real* mutable_data_or_null(const at::Tensor& states, int64_t head) {
  if (!states.defined()) return nullptr;
  return states.mutable_data_ptr<Real>() + head * states.size(1) * states.size(2);
}

class CpuKdaPiece final : public KdaPiece {
 public:
  explicit CpuKdaPiece(Setup setup);

  at::Tensor map(bool with_matrix) const override;
  at::Tensor gradient_map(const at::Tensor& d_o_THV, bool with_matrix) const override;
  std::pair<at::Tensor, at::Tensor> forward(const at::Tensor& state_before,
                                            bool wants_state) const override;
  Gradients backward(const at::Tensor& d_o_THV, const at::Tensor& state_before,
                     const at::Tensor& d_state_after) const override;

 private:
  int64_t tokens() const { return setup_.tokens(); }
  at::TensorOptions options() const { return setup_.options(); }
  template <typename Real>
  void fill_heads();
  // Calls work(head, stretch, its view of it, scratch) for all heads of the stretches [begin, end).
  template <typename Real, typename Work>
  void for_heads(Range stretches, const Work& work) const;
  template <typename Real>
  void convolve_backward(at::Tensor& d_qkv_3HTK, Gradients& gradients) const;

  Setup setup_;
  at::Tensor qkv_3HTK_;          // convolved; q and k normalised, q scaled
  at::Tensor inverse_norm_2HT_;  // of q and k
};

CpuKdaPiece::CpuKdaPiece(Setup setup) : setup_(std::move(setup)) {
  const int64_t H = setup_.shape.heads;
  qkv_3HTK_ = at::empty({kProjections, H, tokens(), setup_.shape.key_width}, options());
  inverse_norm_2HT_ = at::empty({2, H, tokens()}, options());
  for_real_type(qkv_3HTK_.scalar_type(), [&]<typename Real>() { fill_heads<Real>(); });
}

template <typename Real>
void CpuKdaPiece::fill_heads() {
  const int64_t K = setup_.shape.key_width;
  parallel_ranges({0, kProjections * setup_.shape.heads}, 1, [&](Range part) {
    for (int64_t unit = part.begin; unit < part.end; ++unit) {
      const Real* weight =
          setup_.weight_3HNK.const_data_ptr<Real>() + unit * setup_.shape.conv_taps * K;
      for (const Range& rows : setup_.stretches) {
        const ConvolutionInput<Real> input{head_of<Real>(setup_.inputs.qkv_T3HK, unit, rows.begin),
                                           head_of<Real>(setup_.before_N3HK, unit, 0),
                                           rows.begin == 0 ? setup_.before_N3HK.size(0) : 0};
        short_convolution_forward(input, rows.size(), K, setup_.shape.conv_taps, weight,
                                  {at_row<Real>(qkv_3HTK_, unit, rows.begin, K), K});
      }
      if (unit >= 2 * setup_.shape.heads) continue;
      unit_rows_forward(tokens(), K, scale_of(setup_.shape, unit / setup_.shape.heads),
                        at_row<Real>(qkv_3HTK_, unit, 0, K),
                        inverse_norm_2HT_.mutable_data_ptr<Real>() + unit * tokens());
    }
  });
}

template <typename Real, typename Work>
void CpuKdaPiece::for_heads(Range stretches, const Work& work) const {
  const int64_t H = setup_.shape.heads;
  const int64_t K = setup_.shape.key_width;
  parallel_ranges({0, stretches.size() * H}, 1, [&](Range part) {
    const KdaScratch<Real> scratch(setup_.shape);
    for (int64_t unit = part.begin; unit < part.end; ++unit) {
      const int64_t head = unit % H;
      const int64_t idx = stretches.begin + unit / H;
      const Range rows = setup_.stretches[static_cast<size_t>(idx)];
      const auto strip = [&](int64_t projection) {
        return Strip<const Real>{at_row<Real>(qkv_3HTK_, projection * H + head, rows.begin, K), K};
      };
      const KdaStretch<Real> in{
          rows.size(),
          strip(0),
          strip(1),
          strip(2),
          {setup_.inputs.g_THK.const_data_ptr<Real>() + (rows.begin * H + head) * K, H * K},
          {setup_.inputs.beta_TH.const_data_ptr<Real>() + rows.begin * H + head, H}};
      work(head, idx, in, scratch);
    }
  });
}

at::Tensor CpuKdaPiece::map(bool with_matrix) const {
  const int64_t K = setup_.shape.key_width;
  const int64_t columns = setup_.shape.value_width + (with_matrix ? K : 0);
  const at::Tensor maps = at::empty({setup_.shape.heads, K, columns}, options());
  const auto count = static_cast<int64_t>(setup_.stretches.size());
  for_real_type(maps.scalar_type(), [&]<typename Real>() {
    for_heads<Real>({count - 1, count}, [&](int64_t head, int64_t, const KdaStretch<Real>& in,
                                            const KdaScratch<Real>& scratch) {
      kda_map(setup_.shape, in, with_matrix, mutable_data_or_null<Real>(maps, head), scratch);
    });
  });
  return maps;
}

at::Tensor CpuKdaPiece::gradient_map(const at::Tensor& d_o_THV, bool with_matrix) const {
  const int64_t K = setup_.shape.key_width;
  const int64_t V = setup_.shape.value_width;
  const at::Tensor maps = at::empty({setup_.shape.heads, K, V + (with_matrix ? K : 0)}, options());
  for_real_type(maps.scalar_type(), [&]<typename Real>() {
    for_heads<Real>({0, 1}, [&](int64_t head, int64_t, const KdaStretch<Real>& in,
                                const KdaScratch<Real>& scratch) {
      kda_gradient_map<Real>(setup_.shape, in,
                             {d_o_THV.const_data_ptr<Real>() + head * V, setup_.shape.heads * V},
                             with_matrix, mutable_data_or_null<Real>(maps, head), scratch);
    });
  });
  return maps;
}

std::pair<at::Tensor, at::Tensor> CpuKdaPiece::forward(const at::Tensor& state_before,
                                                       bool wants_state) const {
  const int64_t H = setup_.shape.heads;
  const int64_t V = setup_.shape.value_width;
  const auto count = static_cast<int64_t>(setup_.stretches.size());
  at::Tensor o_THV = at::empty({tokens(), H, V}, options());
  at::Tensor state_after;
  if (wants_state) state_after = at::empty({H, setup_.shape.key_width, V}, options());
  const at::Tensor none;
  for_real_type(o_THV.scalar_type(), [&]<typename Real>() {
    for_heads<Real>({0, count}, [&](int64_t head, int64_t idx, const KdaStretch<Real>& in,
                                    const KdaScratch<Real>& scratch) {
      const int64_t first = setup_.stretches[static_cast<size_t>(idx)].begin;
      kda_forward<Real>(setup_.shape, in, data_or_null<Real>(idx == 0 ? state_before : none, head),
                        {o_THV.mutable_data_ptr<Real>() + (first * H + head) * V, H * V},
                        mutable_data_or_null<Real>(idx == count - 1 ? state_after : none, head),
                        scratch);
    });
  });
  return {o_THV, state_after};
}

KdaPiece::Gradients CpuKdaPiece::backward(const at::Tensor& d_o_THV, const at::Tensor& state_before,
                                          const at::Tensor& d_state_after) const {
  const int64_t H = setup_.shape.heads;
  const int64_t K = setup_.shape.key_width;
  const int64_t V = setup_.shape.value_width;
  const auto count = static_cast<int64_t>(setup_.stretches.size());
  LONGSPAN_CHECK(d_o_THV.sizes() == at::IntArrayRef({tokens(), H, V}) && d_o_THV.is_contiguous(),
                 "gradient of the output ", d_o_THV.toString(), " ", d_o_THV.sizes());
  Gradients gradients{{at::empty_like(setup_.inputs.qkv_T3HK), at::empty_like(setup_.inputs.g_THK),
                       at::empty_like(setup_.inputs.beta_TH)},
                      at::zeros_like(setup_.before_N3HK),
                      at::zeros_like(setup_.weight_3HNK),
                      state_before.defined() ? at::empty_like(state_before) : at::Tensor()};
  at::Tensor d_qkv_3HTK = at::empty_like(qkv_3HTK_);
  const at::Tensor none;
  for_real_type(d_o_THV.scalar_type(), [&]<typename Real>() {
    for_heads<Real>({0, count}, [&](int64_t head, int64_t idx, const KdaStretch<Real>& in,
                                    const KdaScratch<Real>& scratch) {
      const int64_t first = setup_.stretches[static_cast<size_t>(idx)].begin;
      std::vector<Real> states(static_cast<size_t>(kda_states_before(in.rows) * K * V));
      const auto strip = [&](int64_t projection) {
        return Strip<Real>{at_row<Real>(d_qkv_3HTK, projection * H + head, first, K), K};
      };
      kda_backward<Real>(
          setup_.shape, in, data_or_null<Real>(idx == 0 ? state_before : none, head),
          {d_o_THV.const_data_ptr<Real>() + (first * H + head) * V, H * V},
          data_or_null<Real>(idx == count - 1 ? d_state_after : none, head),
          {strip(0),
           strip(1),
           strip(2),
           {gradients.inputs.g_THK.mutable_data_ptr<Real>() + (first * H + head) * K, H * K},
           {gradients.inputs.beta_TH.mutable_data_ptr<Real>() + first * H + head, H}},
          mutable_data_or_null<Real>(idx == 0 ? gradients.state_before : none, head), states.data(),
          scratch);
    });
    convolve_backward<Real>(d_qkv_3HTK, gradients);
  });
  return gradients;
}

template <typename Real>
void CpuKdaPiece::convolve_backward(at::Tensor& d_qkv_3HTK, Gradients& gradients) const {
  const int64_t K = setup_.shape.key_width;
  const int64_t weights = setup_.shape.conv_taps * K;
  parallel_ranges({0, kProjections * setup_.shape.heads}, 1, [&](Range part) {
    for (int64_t unit = part.begin; unit < part.end; ++unit) {
      if (unit < 2 * setup_.shape.heads) {
        unit_rows_backward(tokens(), K, scale_of(setup_.shape, unit / setup_.shape.heads),
                           at_row<Real>(qkv_3HTK_, unit, 0, K),
                           inverse_norm_2HT_.const_data_ptr<Real>() + unit * tokens(),
                           at_row<Real>(d_qkv_3HTK, unit, 0, K));
      }
      for (const Range& rows : setup_.stretches) {
        const ConvolutionInput<Real> input{head_of<Real>(setup_.inputs.qkv_T3HK, unit, rows.begin),
                                           head_of<Real>(setup_.before_N3HK, unit, 0),
                                           rows.begin == 0 ? setup_.before_N3HK.size(0) : 0};
        short_convolution_backward<Real>(
            input, rows.size(), K, setup_.shape.conv_taps,
            setup_.weight_3HNK.const_data_ptr<Real>() + unit * weights,
            {at_row<Real>(d_qkv_3HTK, unit, rows.begin, K), K},
            mutable_head_of<Real>(gradients.inputs.qkv_T3HK, unit, rows.begin),
            mutable_head_of<Real>(gradients.before_N3HK, unit, 0),
            gradients.weight_3HNK.mutable_data_ptr<Real>() + unit * weights);
      }
    }
  });
}

}  // namespace

std::unique_ptr<KdaPiece> make_cpu_kda_piece(KdaPiece::Setup setup) {
  return std::make_unique<CpuKdaPiece>(std::move(setup));
}

}  // namespace longspan
