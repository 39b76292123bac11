#include <array>
#include <utility>

#include "base/check.h"
#include "schedule/step_schedule.h"

namespace longspan {
namespace {

constexpr std::array<std::pair<StoredMode, std::string_view>, 4> kStoredModes = {{
    {StoredMode::kKeep, "keep"},
    {StoredMode::kLayerInputsAttention, "layer_inputs_attention"},
    {StoredMode::kLayerInputs, "layer_inputs"},
    {StoredMode::kContextOnly, "context_only"},
}};

}  // namespace

std::string_view stored_mode_name(StoredMode mode) {
  return kStoredModes.at(static_cast<size_t>(mode)).second;
}

StoredMode stored_mode_from_name(std::string_view name) {
  std::string known;
  for (const auto& [mode, mode_name] : kStoredModes) {
    if (name == mode_name) return mode;
    known += text(known.empty() ? "" : ", ", mode_name);
  }
  throw UserError(text("unknown stored mode \"", name, "\"; one of ", known));
}

std::string_view operation_kind_name(OperationKind kind) {
  switch (kind) {
    case OperationKind::kGatherWeights:
      return "gather weights";
    case OperationKind::kReleaseWeights:
      return "release weights";
    case OperationKind::kOpenGradients:
      return "open gradients";
    case OperationKind::kReduceGradients:
      return "reduce gradients";
    case OperationKind::kCloseGradients:
      return "close gradients";
    case OperationKind::kEmbed:
      return "embed";
    case OperationKind::kPreSegment:
      return "pre segment";
    case OperationKind::kAttentionBegin:
      return "attention begin";
    case OperationKind::kAttentionOutStart:
      return "attention out start";
    case OperationKind::kAttentionOutFinish:
      return "attention out";
    case OperationKind::kAttentionLaunch:
      return "attention tasks";
    case OperationKind::kAttentionBackStart:
      return "attention back start";
    case OperationKind::kAttentionBackFinish:
      return "attention back";
    case OperationKind::kAttentionEnd:
      return "attention end";
    case OperationKind::kMix:
      return "mix";
    case OperationKind::kPostSegment:
      return "post segment";
    case OperationKind::kExperts:
      return "experts";
    case OperationKind::kCombineSegment:
      return "combine segment";
    case OperationKind::kCombineBackward:
      return "combine backward";
    case OperationKind::kCarryContext:
      return "carry context";
    case OperationKind::kHeadLoss:
      return "head and loss";
    case OperationKind::kHeadEval:
      return "head and token losses";
    case OperationKind::kPostBackward:
      return "post backward";
    case OperationKind::kPreBackward:
      return "pre backward";
    case OperationKind::kEmbedBackward:
      return "embedding backward";
    case OperationKind::kDrop:
      return "drop";
    case OperationKind::kOptimizerStep:
      return "optimizer step";
  }
  throw InternalError("unknown operation kind");
}

std::string_view pass_name(Pass pass) {
  switch (pass) {
    case Pass::kForward:
      return "forward";
    case Pass::kRecompute:
      return "recompute";
    case Pass::kBackward:
      return "backward";
  }
  throw InternalError("unknown pass");
}

std::string_view buffer_kind_name(BufferKind kind) {
  switch (kind) {
    case BufferKind::kWeights:
      return "weights";
    case BufferKind::kGradients:
      return "gradients";
    case BufferKind::kHidden:
      return "hidden";
    case BufferKind::kMixInputs:
      return "mix_inputs";
    case BufferKind::kContext:
      return "context";
    case BufferKind::kCarriedContext:
      return "carried_context";
    case BufferKind::kAttentionPass:
      return "attention_pass";
    case BufferKind::kMixOutput:
      return "mix_output";
    case BufferKind::kSideOutputs:
      return "side_outputs";
    case BufferKind::kSideGradients:
      return "side_gradients";
    case BufferKind::kMixChoices:
      return "mix_choices";
    case BufferKind::kExpertInputs:
      return "expert_inputs";
    case BufferKind::kExpertChoices:
      return "expert_choices";
    case BufferKind::kPostOutputs:
      return "post_outputs";
    case BufferKind::kExpertOutput:
      return "expert_output";
    case BufferKind::kExpertInputGradients:
      return "expert_input_gradients";
    case BufferKind::kExpertOutputGradient:
      return "expert_output_gradient";
    case BufferKind::kPostOutputGradients:
      return "post_output_gradients";
    case BufferKind::kCombineGraph:
      return "combine_graph";
    case BufferKind::kPreGraph:
      return "pre_graph";
    case BufferKind::kPostGraph:
      return "post_graph";
    case BufferKind::kHiddenGradient:
      return "hidden_gradient";
    case BufferKind::kResidualGradient:
      return "residual_gradient";
    case BufferKind::kOutputGradient:
      return "output_gradient";
    case BufferKind::kMixInputGradients:
      return "mix_input_gradients";
    case BufferKind::kContextGradient:
      return "context_gradient";
  }
  throw InternalError("unknown buffer kind");
}

std::string describe(const BufferKey& key) {
  return text(buffer_kind_name(key.kind), "(micro-batch ", key.micro_batch, ", layer ", key.layer,
              ", chunk ", key.chunk, ")");
}

std::string describe(const Operation& operation) {
  return text(operation_kind_name(operation.kind), ", ", pass_name(operation.pass),
              ", micro-batch ", operation.micro_batch, ", layer ", operation.layer, ", chunk ",
              operation.chunk, ", index ", operation.index);
}

}  // namespace longspan
