#include "experts/cuda_expert_products.h"

#include <ATen/ops/_grouped_mm.h>
#include <ATen/ops/addmm.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/mm.h>
#include <ATen/ops/zeros_like.h>

#include <span>

#include "device/device.h"
#include "device/device_types.h"
#include "experts/expert_order.h"
#include "experts/row_moves.h"
#include "kernels/cuda/expert_rows.h"
#include "layers/row_ops.h"

namespace longspan {
namespace {

using cuda::Accumulate;

constexpr int64_t kGroupedMultiple = 8;  // of both widths of a grouped product: rows of 16 bytes

// The pairs of a batch by expert, on the host and on the device.
class Groups {
 public:
  Groups(const ExpertBatch& batch, int64_t experts)
      : order_(expert_order(batch, experts)),
        device_(batch.x_RD.device()),
        ends_(upload(std::span<const int32_t>(order_.ends), device_)) {}

  const ExpertOrder& order() const { return order_; }

  // x[places of e] W_e^T for each expert e; w [e, out, in].
  at::Tensor products(const at::Tensor& x_PK, const at::Tensor& w_eMK) const {
    return multiplied(x_PK, w_eMK.transpose(1, 2));
  }
  // x[places of e] W_e.
  at::Tensor transposed_products(const at::Tensor& x_PM, const at::Tensor& w_eMK) const {
    return multiplied(x_PM, w_eMK);
  }

  // gradient_e += dy[places of e]^T x[places of e].
  void add_weight_gradients(const at::Tensor& dy, const at::Tensor& x,
                            const at::Tensor& gradient_eMK) const {
    for (int64_t expert = 0; expert < std::ssize(order_.ends); ++expert) {
      const Range places = order_.places(expert);
      if (places.empty()) continue;
      at::Tensor gradient = gradient_eMK[expert];
      const at::Tensor left = dy.narrow(0, places.begin, places.size()).t();
      const at::Tensor right = x.narrow(0, places.begin, places.size());
      if (gradient.scalar_type() == x.scalar_type()) {
        gradient.addmm_(left, right);
      } else {
        at::addmm_out(gradient, gradient, left, right, gradient.scalar_type());
      }
    }
  }

 private:
  at::Tensor multiplied(const at::Tensor& x, const at::Tensor& w_eKN) const {
    const int64_t k = w_eKN.size(1);
    const int64_t n = w_eKN.size(2);
    if (x.scalar_type() == at::kBFloat16 && k % kGroupedMultiple == 0 &&
        n % kGroupedMultiple == 0) {
      return at::_grouped_mm(x, w_eKN, ends_);
    }
    at::Tensor y = at::empty({x.size(0), n}, x.options());
    for (int64_t expert = 0; expert < std::ssize(order_.ends); ++expert) {
      const Range places = order_.places(expert);
      if (places.empty()) continue;
      at::Tensor part = y.narrow(0, places.begin, places.size());
      at::mm_out(part, x.narrow(0, places.begin, places.size()), w_eKN[expert]);
    }
    return y;
  }

  ExpertOrder order_;
  at::Device device_;
  at::Tensor ends_;
};

// y[r] = sum over the places of row r of weights (first + second); `second`, `weights` may be
// undefined.
at::Tensor combined(const Groups& groups, const at::Tensor& first, const at::Tensor& second,
                    const at::Tensor& weights, int64_t rows) {
  at::Tensor y = at::empty({rows, first.size(1)}, first.options());
  const PlacesOfRows of = places_of_rows(groups.order(), rows);
  const at::Tensor begins = upload(std::span<const int64_t>(of.begins), first.device());
  const at::Tensor places = upload(std::span<const int64_t>(of.places), first.device());
  for_device_type(first.scalar_type(), [&]<typename T>() {
    cuda::combine_rows<T>(
        {device_data<const T>(first), second.defined() ? device_data<const T>(second) : nullptr},
        {device_data<const int64_t>(begins), device_data<const int64_t>(places)},
        weights.defined() ? device_data<const Accumulate<T>>(weights) : nullptr, rows,
        first.size(1), device_data<T>(y), current_stream());
  });
  return y;
}

// What stands between the products of an expert's backward: da becomes dup.
struct BetweenProducts {
  at::Tensor a_weighted;
  at::Tensor dgate;
};

BetweenProducts swiglu_between(const Groups& groups, const at::Tensor& gate, const at::Tensor& up,
                               const at::Tensor& da, const at::Tensor& share, double limit,
                               const at::Tensor& dots) {
  const BetweenProducts result{at::empty_like(gate), at::empty_like(gate)};
  const at::Tensor pairs = upload(std::span<const int64_t>(groups.order().pairs), gate.device());
  for_device_type(gate.scalar_type(), [&]<typename T>() {
    using A = Accumulate<T>;
    T* dup = device_data<T>(da);
    cuda::weighted_swiglu_backward<T>(
        {device_data<const T>(gate), device_data<const T>(up), dup, device_data<const A>(share),
         device_data<const int64_t>(pairs), device_data<T>(result.a_weighted),
         device_data<T>(result.dgate), dup, device_data<A>(dots)},
        limit, gate.size(0), gate.size(1), current_stream());
  });
  return result;
}

}  // namespace

at::Tensor cuda_expert_products(const ExpertBatch& batch, const ExpertWeights& weights,
                                double limit) {
  const Groups groups(batch, weights.gate_eFD.size(0));
  if (groups.order().pairs.empty()) return at::zeros_like(batch.x_RD);
  const at::Tensor x = gathered(batch.x_RD, groups.order().rows);
  const at::Tensor a =
      swiglu(groups.products(x, weights.gate_eFD), groups.products(x, weights.up_eFD), limit);
  return combined(groups, groups.products(a, weights.down_eDF), {},
                  gathered(batch.weights_P, groups.order().pairs), batch.x_RD.size(0));
}

ExpertBatchGradient cuda_expert_products_backward(const ExpertBatch& batch, const at::Tensor& dy_RD,
                                                  const ExpertWeights& weights, double limit,
                                                  const ExpertWeightGradients& gradients) {
  const Groups groups(batch, weights.gate_eFD.size(0));
  ExpertBatchGradient result{{}, at::empty_like(batch.weights_P)};
  if (groups.order().pairs.empty()) {
    result.dx_RD = at::zeros_like(batch.x_RD);
    return result;
  }
  const at::Tensor x = gathered(batch.x_RD, groups.order().rows);
  const at::Tensor dy = gathered(dy_RD, groups.order().rows);
  const at::Tensor share = gathered(batch.weights_P, groups.order().pairs);
  const at::Tensor gate = groups.products(x, weights.gate_eFD);
  const at::Tensor up = groups.products(x, weights.up_eFD);
  // <dy, W_down a> = <W_down^T dy, a>: the weight's gradient needs no product of its own.
  const at::Tensor da = groups.transposed_products(dy, weights.down_eDF);
  const BetweenProducts between =
      swiglu_between(groups, gate, up, da, share, limit, result.dweights_P);
  const at::Tensor& dup = da;
  groups.add_weight_gradients(dy, between.a_weighted, gradients.down_eDF);
  groups.add_weight_gradients(between.dgate, x, gradients.gate_eFD);
  groups.add_weight_gradients(dup, x, gradients.up_eFD);
  result.dx_RD = combined(groups, groups.transposed_products(between.dgate, weights.gate_eFD),
                          groups.transposed_products(dup, weights.up_eFD), {}, batch.x_RD.size(0));
  return result;
}

}  // namespace longspan
