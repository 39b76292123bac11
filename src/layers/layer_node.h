// Private to layers/: how an operation of ours becomes a node of torch's autograd graph.
//
// Why not torch::autograd::Function: an operation here must say which tensors it keeps (for the
// count of stored bytes), and carries plain C++ state (parameter access, shapes) into backward.
// A node takes a function instead of a class per operation:
//
//   at::Tensor y = ...;                                    // computed with grad mode off
//   connect({y}, {x}, {x, inverse_rms}, [=](const Tensors& dy, const Tensors& saved) {
//     return Tensors{dx};                                  // one gradient per input
//   });
//
// `backward` captures no tensors: they would be held, uncounted, until the node dies. What it needs
// goes through `saved`, which is freed when the engine has run the node. A saved tensor that was
// changed in place in between is an InternalError.
// Thread contract: as torch's graphs: built and run by one rank, on its thread (on CUDA by the
// engine's device thread).
#pragma once

#include <torch/csrc/autograd/function.h>

#include <functional>
#include <vector>

namespace longspan {

using Tensors = std::vector<at::Tensor>;
using BackwardFunction = std::function<Tensors(const Tensors& output_gradients, const Tensors&)>;

class LayerNode : public torch::autograd::Node {
 public:
  LayerNode(Tensors saved, BackwardFunction backward);

  const Tensors& saved() const { return saved_; }
  std::string name() const override { return "longspan::LayerNode"; }
  void release_variables() override;

 protected:
  torch::autograd::variable_list apply(torch::autograd::variable_list&& gradients) override;

 private:
  Tensors saved_;
  std::vector<uint32_t> versions_;  // of the saved tensors, when they were saved
  BackwardFunction backward_;
};

// Does nothing if grad mode is off or no input requires a gradient. Outputs are fresh tensors.
void connect(const Tensors& outputs, const Tensors& inputs, const Tensors& saved,
             BackwardFunction backward);

}  // namespace longspan
