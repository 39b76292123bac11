// Layers with experts: post ends at the router, the exchange follows, combine ends the layer.
#include <ATen/ops/add.h>
#include <ATen/ops/empty.h>

#include "base/check.h"
#include "device/device.h"
#include "train/executor_step.h"
#include "train/model_experts.h"

namespace longspan {
namespace {

// Post's outputs in the order of TransformerModel::post_to_experts.
constexpr std::ptrdiff_t kExpertInputs = 2;  // tokens, weights

// The matrices of a kind lie one after the other in their unit's flat array.
at::Tensor stacked_experts(const at::Tensor& first, int64_t experts) {
  return first.as_strided({experts, first.size(0), first.size(1)},
                          {first.numel(), first.size(1), 1});
}

}  // namespace

void ExecutorStep::post_to_experts(const Operation& operation) {
  Buffer& inputs = write(operation, BufferKind::kExpertInputs);
  std::vector<at::Tensor>& choices = write(operation, BufferKind::kExpertChoices).tensors;
  if (piece(operation).line.empty()) {
    const int64_t chosen = model_.spec().experts.top_k;
    inputs.tensors = {no_rows({model_.hidden_size()}),
                      no_rows({chosen}).to(accumulate_type(model_.scalar_type()))};
    choices = {at::empty({0, chosen}, model_.tensors().dtype(at::kInt))};
    return;
  }
  if (choices.empty() && options_.given_choices != nullptr) {
    const at::Tensor given = given_rows(options_.given_choices->experts, operation);
    if (given.defined()) choices = {given};
  }
  const auto body = [this, layer = operation.layer, &choices](const std::vector<at::Tensor>& in) {
    return model_.post_to_experts(access(), layer, post_inputs(in), choices);
  };
  const auto outputs =
      run_segment(operation, BufferKind::kPostGraph, body, post_segment_inputs(operation));
  inputs.tensors.assign(outputs.begin(), outputs.begin() + kExpertInputs);
  write(operation, BufferKind::kPostOutputs)
      .tensors.assign(outputs.begin() + kExpertInputs, outputs.end());
}

// The choices in host memory, where tokens are dealt to experts: on a GPU read back once, and kept
// beside the ids that the router repeats.
const at::Tensor& ExecutorStep::host_choices(const Operation& operation) {
  std::vector<at::Tensor>& choices = read(operation, BufferKind::kExpertChoices).tensors;
  if (choices.size() == 1) {
    choices.push_back(choices[0].cpu());
    note_experts(operation, choices[1]);
  }
  return choices[1];
}

// Once for every token: a repeated forward repeats them.
void ExecutorStep::note_experts(const Operation& operation, const at::Tensor& ids_TK) {
  if (ids_TK.size(0) == 0) return;
  std::vector<int64_t>& loads = totals_.expert_loads[operation.layer];
  loads.resize(static_cast<size_t>(model_.spec().experts.num_experts));
  const int32_t* ids = ids_TK.const_data_ptr<int32_t>();
  for (int64_t i = 0; i < ids_TK.numel(); ++i) ++loads[static_cast<size_t>(ids[i])];
  if (!options_.keep_choices) return;
  totals_.experts.push_back({piece(operation).line, operation.layer, ids_TK});
}

// The tokens feed both the experts and combine; the weights the experts alone.
std::vector<at::Tensor> ExecutorStep::post_output_gradients(const Operation& operation) {
  const auto& of_combine = read(operation, BufferKind::kPostOutputGradients).tensors;
  const auto& of_experts = read(operation, BufferKind::kExpertInputGradients).tensors;
  at::Tensor dx_TC = of_experts.at(0);
  if (of_combine.at(0).defined()) dx_TC = at::add(dx_TC, of_combine.at(0));
  std::vector<at::Tensor> gradients = {dx_TC, of_experts.at(1)};
  gradients.insert(gradients.end(), of_combine.begin() + 1, of_combine.end());
  return gradients;
}

void ExecutorStep::combine_segment(const Operation& operation) {
  mark(operation);
  if (piece(operation).line.empty()) return store_hidden(operation, no_rows(model_.hidden_row()));
  // In: the experts' sum, the tokens they saw, the rest of post's outputs.
  std::vector<at::Tensor> inputs = {read(operation, BufferKind::kExpertOutput).tensors.at(0),
                                    read(operation, BufferKind::kExpertInputs).tensors.at(0)};
  const auto& rest = read(operation, BufferKind::kPostOutputs).tensors;
  inputs.insert(inputs.end(), rest.begin(), rest.end());
  const auto body = [this, layer = operation.layer](const std::vector<at::Tensor>& in) {
    return std::vector<at::Tensor>{
        model_.combine(access(), layer, in[0], std::span(in).subspan(1))};
  };
  store_hidden(operation, run_segment(operation, BufferKind::kCombineGraph, body, inputs)[0]);
}

void ExecutorStep::combine_backward(const Operation& operation) {
  Buffer& graph = read(operation, BufferKind::kCombineGraph);
  Buffer& expert_output = write(operation, BufferKind::kExpertOutputGradient);
  Buffer& post_outputs = write(operation, BufferKind::kPostOutputGradients);
  if (!graph.segment) {
    expert_output.tensors = {no_rows({model_.hidden_size()})};
    return;
  }
  const auto gradients =
      graph.segment->backward({read(operation, BufferKind::kHiddenGradient, 1).tensors.at(0)});
  expert_output.tensors = {gradients[0]};
  post_outputs.tensors.assign(gradients.begin() + 1, gradients.end());
}

// ---- the exchange

ExpertExchange ExecutorStep::expert_exchange() const {
  return {{.group = expert_group_shape(model_.spec(), store_.layout().expert_group(),
                                       options_.max_expert_pairs_per_chunk),
           .limit = model_.swiglu_limit()},
          expert_group_};
}

const ExpertParameters& ExecutorStep::own_experts(const Operation& operation) const {
  const int64_t block = comm_.rank() % store_.layout().expert_group();
  return model_.parameters().experts(operation.layer, block);
}

ExpertCall ExecutorStep::expert_call(const Operation& operation) const {
  return {.tag = tag(operation), .op = describe(operation)};
}

void ExecutorStep::experts(const Operation& operation) {
  exchange_time_.start();
  comm_.activity(describe(operation));
  if (operation.pass == Pass::kBackward) {
    experts_backward(operation);
  } else {
    experts_forward(operation);
  }
  exchange_time_.stop();
}

void ExecutorStep::experts_forward(const Operation& operation) {
  const ExpertExchange exchange = expert_exchange();
  const std::vector<at::Tensor>& inputs = read(operation, BufferKind::kExpertInputs).tensors;
  const ExpertDispatch dispatch =
      exchange.dispatch(expert_call(operation), host_choices(operation));
  write(operation, BufferKind::kExpertOutput).tensors = {exchange.forward(
      expert_call(operation), dispatch, {inputs.at(0), inputs.at(1)}, expert_weights(operation))};
}

void ExecutorStep::experts_backward(const Operation& operation) {
  const ExpertExchange exchange = expert_exchange();
  const std::vector<at::Tensor>& inputs = read(operation, BufferKind::kExpertInputs).tensors;
  const ExpertDispatch dispatch =
      exchange.dispatch(expert_call(operation), host_choices(operation));
  ExpertInputGradients gradients =
      exchange.backward(expert_call(operation), dispatch, {inputs.at(0), inputs.at(1)},
                        read(operation, BufferKind::kExpertOutputGradient).tensors.at(0),
                        expert_weights(operation), expert_gradients(operation));
  write(operation, BufferKind::kExpertInputGradients).tensors = {std::move(gradients.dx_TD),
                                                                 std::move(gradients.dweights_TK)};
}

ExpertWeights ExecutorStep::expert_weights(const Operation& operation) const {
  const ExpertParameters& ids = own_experts(operation);
  const auto stacked = [&](ParameterId first) {
    return stacked_experts(store_.weight(first), ids.experts.size());
  };
  return {stacked(ids.gate), stacked(ids.up), stacked(ids.down)};
}

ExpertWeightGradients ExecutorStep::expert_gradients(const Operation& operation) {
  const ExpertParameters& ids = own_experts(operation);
  const auto stacked = [&](ParameterId first) {
    return stacked_experts(store_.gradient(first), ids.experts.size());
  };
  return {stacked(ids.gate), stacked(ids.up), stacked(ids.down)};
}

}  // namespace longspan
