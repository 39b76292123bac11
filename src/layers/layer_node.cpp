#include "layers/layer_node.h"

#include <torch/csrc/autograd/functions/utils.h>

#include <utility>

#include "base/check.h"

namespace longspan {

LayerNode::LayerNode(Tensors saved, BackwardFunction backward) : backward_(std::move(backward)) {
  for (const at::Tensor& tensor : saved) {
    // Detached: a saved output or input must not hold the graph it is part of.
    saved_.push_back(tensor.detach());
    versions_.push_back(static_cast<uint32_t>(tensor._version()));
  }
}

void LayerNode::release_variables() {
  saved_.clear();
  backward_ = nullptr;
}

torch::autograd::variable_list LayerNode::apply(torch::autograd::variable_list&& gradients) {
  LONGSPAN_CHECK(backward_ != nullptr, "backward of an operation ran a second time");
  for (size_t i = 0; i < saved_.size(); ++i) {
    LONGSPAN_CHECK(static_cast<uint32_t>(saved_[i]._version()) == versions_[i], "saved tensor ", i,
                   " was changed in place before backward");
  }
  for (size_t i = 0; i < gradients.size(); ++i) {
    LONGSPAN_CHECK(gradients[i].defined(), "output ", i, " of ", gradients.size(),
                   " has no gradient; pass zeros");
  }
  return backward_(gradients, saved_);
}

void connect(const Tensors& outputs, const Tensors& inputs, const Tensors& saved,
             BackwardFunction backward) {
  if (!torch::autograd::compute_requires_grad(inputs)) return;
  auto node = std::make_shared<LayerNode>(saved, std::move(backward));
  node->set_next_edges(torch::autograd::collect_next_edges(inputs));
  for (const at::Tensor& output : outputs) torch::autograd::set_history(output, node);
}

}  // namespace longspan
