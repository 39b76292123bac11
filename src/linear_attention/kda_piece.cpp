#include "linear_attention/kda_piece.h"

#include "base/check.h"
#include "device/device.h"
#include "linear_attention/kda_piece_cpu.h"
#include "linear_attention/kda_piece_cuda.h"

namespace longspan {
namespace {

void check_sizes(const at::Tensor& tensor, const std::vector<int64_t>& sizes, at::ScalarType type,
                 const char* name) {
  LONGSPAN_CHECK(tensor.sizes() == at::IntArrayRef(sizes) && tensor.is_contiguous() &&
                     tensor.scalar_type() == type,
                 name, " ", tensor.toString(), " ", tensor.sizes(), ", expected contiguous ",
                 at::IntArrayRef(sizes), " of ", c10::toString(type));
}

void check(const KdaPiece::Setup& setup) {
  const int64_t H = setup.shape.heads;
  const int64_t K = setup.shape.key_width;
  const int64_t T = setup.tokens();
  const at::ScalarType type = setup.inputs.beta_TH.scalar_type();
  LONGSPAN_CHECK(K == setup.shape.value_width, "key width ", K, ", value width ",
                 setup.shape.value_width, ": linear attention has them alike");
  check_sizes(setup.inputs.qkv_T3HK, {T, 3, H, K}, type, "q, k, v");
  // Of a piece without tokens nothing is computed, so the type of its decays does not matter.
  const at::Tensor& g = setup.inputs.g_THK;
  check_sizes(g, {T, H, K}, T == 0 ? g.scalar_type() : accumulate_type(type), "decay");
  check_sizes(setup.inputs.beta_TH, {T, H}, type, "beta");
  const int64_t before_rows = setup.before_N3HK.size(0);
  check_sizes(setup.before_N3HK, {before_rows, 3, H, K}, type, "rows before the piece");
  check_sizes(setup.weight_3HNK, {3, H, setup.shape.conv_taps, K}, type,
              "weight of the convolution");
  LONGSPAN_CHECK(before_rows < setup.shape.conv_taps, before_rows, " rows before the piece, taps ",
                 setup.shape.conv_taps);
}

}  // namespace

std::unique_ptr<KdaPiece> make_kda_piece(KdaPiece::Setup setup) {
  check(setup);
  if constexpr (kBuiltWithCuda) {
    if (setup.inputs.beta_TH.is_cuda()) return make_cuda_kda_piece(std::move(setup));
  }
  return make_cpu_kda_piece(std::move(setup));
}

bool kda_is_fast(const LinearAttentionShape& shape, at::ScalarType type, at::Device device) {
  if constexpr (kBuiltWithCuda) {
    if (device.is_cuda()) return cuda_kda_is_fast(shape, type, device);
  }
  return true;
}

at::TensorOptions state_options(const at::Tensor& like) {
  return like.options().dtype(accumulate_type(like.scalar_type()));
}

}  // namespace longspan
