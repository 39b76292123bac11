#include "layers/segment.h"

#include <ATen/core/Tensor.h>
#include <c10/core/GradMode.h>
#include <torch/csrc/autograd/engine.h>

#include <unordered_set>
#include <utility>

#include "base/check.h"
#include "layers/layer_node.h"

namespace longspan {

using torch::autograd::Edge;
using torch::autograd::edge_list;
using torch::autograd::Node;

struct Segment::Graph {
  Tensors inputs;
  Tensors outputs;
  edge_list input_edges;
  edge_list output_edges;
};

void StorageSet::add(const at::Tensor& tensor) {
  if (!tensor.defined()) return;
  const auto bytes = static_cast<int64_t>(tensor.storage().nbytes());
  if (storages_.emplace(tensor.storage().unsafeGetStorageImpl(), bytes).second) bytes_ += bytes;
}

Segment Segment::record(const Body& body, const std::vector<at::Tensor>& inputs) {
  const c10::AutoGradMode on(true);
  Segment segment;
  segment.graph_ = std::make_unique<Graph>();
  Graph& graph = *segment.graph_;
  for (const at::Tensor& input : inputs) {
    graph.inputs.push_back(input.detach().set_requires_grad(true));
    graph.input_edges.push_back(torch::autograd::impl::gradient_edge(graph.inputs.back()));
  }
  for (const at::Tensor& output : body(graph.inputs)) {
    graph.output_edges.push_back(torch::autograd::impl::gradient_edge(output));
    graph.outputs.push_back(output.detach());
  }
  return segment;
}

std::vector<at::Tensor> Segment::run(const Body& body, const std::vector<at::Tensor>& inputs) {
  const c10::AutoGradMode off(false);
  return body(inputs);
}

Segment::Segment() = default;
Segment::Segment(Segment&&) noexcept = default;
Segment& Segment::operator=(Segment&&) noexcept = default;
Segment::~Segment() = default;

const std::vector<at::Tensor>& Segment::outputs() const {
  LONGSPAN_CHECK(recorded(), "a segment that holds no graph has no outputs");
  return graph_->outputs;
}

void Segment::release_outputs() {
  if (recorded()) graph_->outputs.clear();
}

std::vector<at::Tensor> Segment::backward(const std::vector<at::Tensor>& output_gradients) {
  LONGSPAN_CHECK(recorded(), "backward of a segment that holds no graph");
  const std::unique_ptr<Graph> graph = std::move(graph_);
  LONGSPAN_CHECK(output_gradients.size() == graph->output_edges.size(), output_gradients.size(),
                 " gradients for ", graph->output_edges.size(), " outputs");
  graph->outputs.clear();
  edge_list edges;
  Tensors gradients;
  for (size_t i = 0; i < output_gradients.size(); ++i) {
    if (!output_gradients[i].defined()) continue;
    LONGSPAN_CHECK(graph->output_edges[i].is_valid(), "a gradient for output ", i,
                   " of a segment, which does not depend on its inputs");
    edges.push_back(graph->output_edges[i]);
    gradients.push_back(output_gradients[i]);
  }
  return torch::autograd::Engine::get_default_engine().execute(
      edges, gradients, /*keep_graph=*/false, /*create_graph=*/false, /*accumulate_grad=*/false,
      graph->input_edges);
}

void Segment::add_storages(StorageSet& set) const {
  if (!recorded()) return;
  for (const at::Tensor& tensor : graph_->inputs) set.add(tensor);
  for (const at::Tensor& tensor : graph_->outputs) set.add(tensor);
  std::unordered_set<const Node*> inputs;
  for (const Edge& edge : graph_->input_edges) inputs.insert(edge.function.get());
  std::unordered_set<const Node*> seen;
  std::vector<const Node*> pending;
  auto visit = [&](const edge_list& edges) {
    for (const Edge& edge : edges) {
      if (edge.is_valid() && seen.insert(edge.function.get()).second) {
        pending.push_back(edge.function.get());
      }
    }
  };
  visit(graph_->output_edges);
  while (!pending.empty()) {
    const Node* node = pending.back();
    pending.pop_back();
    visit(node->next_edges());
    if (const auto* ours = dynamic_cast<const LayerNode*>(node)) {
      for (const at::Tensor& tensor : ours->saved()) set.add(tensor);
    } else {
      // Views keep shapes only. Any other operation of torch would keep tensors that cannot be
      // counted here.
      LONGSPAN_CHECK(inputs.contains(node) || node->name() == "ViewBackward0",
                     "operation without a count of stored bytes in a segment: ", node->name());
    }
  }
}

int64_t Segment::stored_bytes() const {
  StorageSet set;
  add_storages(set);
  return set.bytes();
}

}  // namespace longspan
