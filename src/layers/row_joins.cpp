#include "layers/row_joins.h"

#include <ATen/ops/add.h>
#include <ATen/ops/sigmoid.h>
#include <ATen/ops/sigmoid_backward.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/zeros.h>
#include <c10/core/GradMode.h>

#include "layers/layer_node.h"

namespace longspan {

using c10::AutoGradMode;

at::Tensor stack_rows(const std::vector<at::Tensor>& parts) {
  at::Tensor stacked;
  {
    const AutoGradMode off(false);
    stacked = at::stack(parts, 1);
  }
  connect({stacked}, parts, {}, [count = std::ssize(parts)](const Tensors& dy, const Tensors&) {
    Tensors gradients;
    for (int64_t i = 0; i < count; ++i) gradients.push_back(dy[0].select(1, i).contiguous());
    return gradients;
  });
  return stacked;
}

at::Tensor logistic(const at::Tensor& x) {
  at::Tensor y;
  {
    const AutoGradMode off(false);
    y = at::sigmoid(x);
  }
  connect({y}, {x}, {y}, [](const Tensors& dy, const Tensors& saved) {
    return Tensors{at::sigmoid_backward(dy[0], saved[0])};
  });
  return y;
}

at::Tensor sum_of(const at::Tensor& a, const at::Tensor& b) {
  at::Tensor sum;
  {
    const AutoGradMode off(false);
    sum = at::add(a, b);
  }
  connect({sum}, {a, b}, {}, [](const Tensors& dy, const Tensors&) {
    return Tensors{dy[0], dy[0]};
  });
  return sum;
}

at::Tensor narrow_heads(const at::Tensor& x_THK, int64_t width) {
  at::Tensor narrow;
  {
    const AutoGradMode off(false);
    narrow = x_THK.narrow(2, 0, width).contiguous();
  }
  connect({narrow}, {x_THK}, {},
          [sizes = x_THK.sizes().vec(), width](const Tensors& dy, const Tensors&) {
            at::Tensor dx = at::zeros(sizes, dy[0].options());
            dx.narrow(2, 0, width).copy_(dy[0]);
            return Tensors{dx};
          });
  return narrow;
}

}  // namespace longspan
