// Mixes of a step: what looks back without an attention plan.
#include "base/check.h"
#include "train/executor_step.h"

namespace longspan {

MixCall ExecutorStep::mix_call(const Operation& operation, int chunk) const {
  return {.access = access(),
          .layer = operation.layer,
          .layout = &layout(operation),
          .chunk = chunk,
          .comm = &comm_,
          .tag = tag(operation),
          .op = text(mix_of(operation)->name(), " ", pass_name(operation.pass), ", layer ",
                     operation.layer, ", chunk ", chunk, ", micro-batch ", operation.micro_batch)};
}

void ExecutorStep::mix(const Operation& operation) {
  attention_time_.start();
  comm_.activity(describe(operation));
  if (operation.pass == Pass::kBackward) {
    mix_backward(operation);
  } else {
    mix_forward(operation);
  }
  attention_time_.stop();
}

// The contexts that the operation reads, in the order of their chunks.
std::vector<const MixContext*> ExecutorStep::mix_contexts(const Operation& operation) {
  std::vector<const MixContext*> contexts;
  for (const BufferKey& key : operation.reads) {
    if (!is_context(key.kind)) continue;
    LONGSPAN_CHECK(key.chunk == std::ssize(contexts), describe(operation), " reads ", describe(key),
                   " out of order");
    contexts.push_back(&buffers_.read(key).context);
  }
  return contexts;
}

at::Tensor ExecutorStep::given_rows(const std::map<int, at::Tensor>& by_layer,
                                    const Operation& operation) {
  const auto given = by_layer.find(operation.layer);
  if (given == by_layer.end()) return {};
  const Range line = piece(operation).line;
  return given->second.narrow(0, line.begin, line.size()).contiguous().to(model_.device());
}

void ExecutorStep::mix_forward(const Operation& operation) {
  const SequenceMix& mix = *mix_of(operation);
  std::vector<at::Tensor>& choices = write(operation, BufferKind::kMixChoices).tensors;
  if (choices.empty() && options_.given_choices != nullptr) {
    const at::Tensor given = given_rows(options_.given_choices->pools, operation);
    if (given.defined()) choices = mix.given_choices(given);
  }
  MixOutput result = mix.forward(mix_call(operation, operation.chunk),
                                 read(operation, BufferKind::kMixInputs).tensors,
                                 mix_contexts(operation), choices);
  if (options_.keep_choices && operation.pass == Pass::kForward && !choices.empty()) {
    totals_.pools.push_back({piece(operation).line, operation.layer, choices[0].cpu()});
  }
  write(operation, BufferKind::kMixOutput).tensors = std::move(result.tensors);
  write(operation, BufferKind::kContext).context = std::move(result.context);
}

// Later bands have added to the gradient of the carried context only; from the band's own backward
// on, all of it counts.
std::vector<MixContextGradient*> ExecutorStep::mix_gradients(const Operation& operation) {
  std::vector<MixContextGradient*> gradients;
  for (const BufferKey& key : operation.reads) {
    if (!is_context(key.kind)) continue;
    const bool whole = key.kind == BufferKind::kContext;
    Buffer& buffer =
        buffers_.write({BufferKind::kContextGradient, key.micro_batch, key.layer, key.chunk});
    if (!buffer.context_gradient || (whole && !buffer.gradient_is_whole)) {
      buffer.context_gradient =
          std::make_unique<MixContextGradient>(mix_of(operation)->zero_gradient(
              mix_call(operation, key.chunk), buffers_.read(key).context,
              buffer.context_gradient.get()));
      buffer.gradient_is_whole = whole;
    }
    gradients.push_back(buffer.context_gradient.get());
  }
  return gradients;
}

void ExecutorStep::mix_backward(const Operation& operation) {
  const MixBackwardInputs given{
      .inputs = read(operation, BufferKind::kMixInputs).tensors,
      .output = read(operation, BufferKind::kMixOutput).tensors,
      .output_gradient = read(operation, BufferKind::kOutputGradient).tensors.at(0),
      .contexts = mix_contexts(operation),
      .gradients = mix_gradients(operation),
      .choices = read(operation, BufferKind::kMixChoices).tensors};
  write(operation, BufferKind::kMixInputGradients).tensors =
      mix_of(operation)->backward(mix_call(operation, operation.chunk), given);
}

void ExecutorStep::carry_context(const Operation& operation) {
  Buffer& carried = write(operation, BufferKind::kCarriedContext);
  const SequenceMix* mix = mix_of(operation);
  if (mix == nullptr) return carry_keys_and_values(operation, carried);
  carried.context = mix->carry(mix_call(operation, operation.chunk),
                               read(operation, BufferKind::kContext).context,
                               /*first_later_chunk=*/operation.index);
}

}  // namespace longspan
