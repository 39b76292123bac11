// The loop of a step, its segments, head and loss.
#include "train/executor_step.h"

#include <ATen/ATen.h>

#include <utility>

#include "base/check.h"
#include "base/narrow.h"
#include "device/device.h"
#include "device/profiler_range.h"
#include "train/step_trace.h"

namespace longspan {
namespace {

using Kind = OperationKind;

constexpr int64_t kTagsPerExchange = 1024;  // what an attention pass, a mix or experts may use
static_assert(kTagsPerMix <= kTagsPerExchange);

// They have a queue of their own; the schedule starts them early and ends them late.
bool of_weights(Kind kind) {
  return kind == Kind::kGatherWeights || kind == Kind::kReduceGradients;
}

}  // namespace

ExecutorStep::ExecutorStep(const ExecutorParts& parts,
                           const std::vector<PlannedMicroBatch>& micro_batches,
                           const RunOptions& options)
    : model_(parts.model),
      store_(parts.store),
      comm_(parts.comm),
      mixes_(parts.mixes),
      collective_queue_(parts.collective_queue),
      expert_group_(parts.expert_group),
      micro_batches_(micro_batches),
      options_(options),
      attention_time_(model_.device()),
      exchange_time_(model_.device()),
      collective_time_(model_.device()) {}

StepTotals ExecutorStep::run(const StepSchedule& schedule) {
  for (const Operation& operation : schedule.operations) {
    if (operation.kind == Kind::kHeadLoss) note_stored_bytes();
    for (const int earlier : operation.waits_for) {
      collective_queue_.wait(std::exchange(moments_[static_cast<size_t>(earlier)], nullptr));
    }
    BesideQueue::Moment done;
    if (of_weights(operation.kind)) {
      done = collective_queue_.run([&] { run_traced(operation); });
    } else {
      run_traced(operation);
    }
    moments_.push_back(std::move(done));
    for (const BufferKey& key : operation.drops) buffers_.drop(key);
    if (options_.account_bytes) {
      totals_.stored_bytes_peak = std::max(totals_.stored_bytes_peak, buffers_.held_bytes());
    }
  }
  buffers_.check_empty();
  read_back();
  return std::move(totals_);
}

void ExecutorStep::run_traced(const Operation& operation) {
  if (options_.trace != nullptr) options_.trace->begin();
  {
    const ProfilerRange range(describe(operation));
    run(operation);
  }
  if (options_.trace != nullptr) options_.trace->end();
}

void ExecutorStep::run(const Operation& operation) {
  switch (operation.kind) {
    case Kind::kGatherWeights:
    case Kind::kReduceGradients:
      return run_collective(operation);
    case Kind::kReleaseWeights:
      return store_.release(operation.layer);
    case Kind::kCloseGradients:
      return store_.close_gradients(operation.layer);
    case Kind::kOpenGradients:
      mark(operation);
      return store_.open_gradients(operation.layer);
    case Kind::kEmbed:
      return embed(operation);
    case Kind::kPreSegment:
      return pre_segment(operation);
    case Kind::kPostSegment:
      return post_segment(operation);
    case Kind::kAttentionBegin:
      return begin_attention(operation);
    case Kind::kAttentionOutStart:
    case Kind::kAttentionOutFinish:
    case Kind::kAttentionLaunch:
    case Kind::kAttentionBackStart:
    case Kind::kAttentionBackFinish:
      return attention_step(operation);
    case Kind::kAttentionEnd:
      return end_attention(operation);
    case Kind::kMix:
      return mix(operation);
    case Kind::kExperts:
      return experts(operation);
    case Kind::kCombineSegment:
      return combine_segment(operation);
    case Kind::kCombineBackward:
      return combine_backward(operation);
    case Kind::kCarryContext:
      return carry_context(operation);
    case Kind::kHeadLoss:
      return head_loss(operation);
    case Kind::kHeadEval:
      return head_eval(operation);
    case Kind::kPostBackward:
      return post_backward(operation);
    case Kind::kPreBackward:
      return pre_backward(operation);
    case Kind::kEmbedBackward:
      return embed_backward(operation);
    case Kind::kDrop:
    case Kind::kOptimizerStep:  // the caller's: learning rate and clipping are not the executor's
      return;
  }
}

void ExecutorStep::read_back() {
  for (const at::Tensor& sum : loss_sums_) totals_.weighted_loss_sum += sum.item<double>();
  totals_.attention_s = attention_time_.take_seconds();
  totals_.exchange_s = exchange_time_.take_seconds();
  totals_.collective_s = collective_time_.take_seconds();
}

void ExecutorStep::note_stored_bytes() {
  if (options_.account_bytes && totals_.stored_bytes == 0) {
    totals_.stored_bytes = buffers_.held_bytes();
  }
}

// ---- buffers

void ExecutorStep::mark(const Operation& operation) {
  for (const BufferKey& key : operation.writes) buffers_.write(key);
}

const ExecutorStep::Piece& ExecutorStep::piece(const Operation& operation) {
  const std::pair<int, int> key{operation.micro_batch, operation.chunk};
  const auto found = pieces_.find(key);
  if (found != pieces_.end()) return found->second;
  Piece made;
  made.line = layout(operation).piece(operation.chunk, comm_.rank());
  made.tokens =
      std::span(micro_batch(operation).data.tokens)
          .subspan(static_cast<size_t>(made.line.begin), static_cast<size_t>(made.line.size()));
  for (const DocumentPart& part : layout(operation).document_parts(made.line)) {
    for (int64_t at = part.positions.begin; at < part.positions.end; ++at)
      made.positions.push_back(at);
  }
  made.rope = model_.rope_table(made.positions);
  return pieces_.emplace(key, std::move(made)).first->second;
}

int64_t ExecutorStep::tag(const Operation& operation) const {
  const auto layers = static_cast<int64_t>(model_.num_layers());
  const auto chunks = static_cast<int64_t>(layout(operation).num_chunks());
  const int64_t pass = operation.pass == Pass::kForward     ? 0
                       : operation.pass == Pass::kRecompute ? 1
                                                            : 2;
  const int64_t index =
      ((operation.micro_batch * layers + operation.layer) * chunks + operation.chunk) * 3 + pass;
  return index * kTagsPerExchange;
}

// ---- weights

void ExecutorStep::run_collective(const Operation& operation) {
  collective_time_.start();
  if (operation.kind == Kind::kGatherWeights) {
    mark(operation);
    store_.gather(operation.layer, describe(operation));
  } else {
    store_.reduce_gradients(operation.layer, describe(operation));
  }
  collective_time_.stop();
}

// ---- segments

at::Tensor ExecutorStep::no_rows(const std::vector<int64_t>& row_shape) const {
  std::vector<int64_t> shape = {0};
  shape.insert(shape.end(), row_shape.begin(), row_shape.end());
  return at::empty(shape, model_.tensors());
}

std::vector<at::Tensor> ExecutorStep::no_mix_inputs(const Operation& operation) const {
  const AttentionShape& shape = model_.attention_shape();
  const SequenceMix* mix = mix_of(operation);
  if (mix == nullptr) return {no_rows({shape.heads, shape.head_width})};
  std::vector<at::Tensor> inputs;
  for (const std::vector<int64_t>& row : mix->input_rows()) inputs.push_back(no_rows(row));
  return inputs;
}

at::Tensor ExecutorStep::no_mix_output(const Operation& operation) const {
  const AttentionShape& shape = model_.attention_shape();
  const SequenceMix* mix = mix_of(operation);
  return no_rows(mix != nullptr ? mix->output_row()
                                : std::vector<int64_t>{shape.heads, shape.head_width});
}

void ExecutorStep::embed(const Operation& operation) {
  const Piece& here = piece(operation);
  write(operation, BufferKind::kHidden).tensors = {
      here.line.empty() ? no_rows(model_.hidden_row()) : model_.embed(access(), here.tokens)};
}

std::vector<at::Tensor> ExecutorStep::run_segment(const Operation& operation, BufferKind graph,
                                                  const Segment::Body& body,
                                                  const std::vector<at::Tensor>& inputs) {
  if (!operation.keep_graph) return Segment::run(body, inputs);
  auto segment = std::make_unique<Segment>(Segment::record(body, inputs));
  std::vector<at::Tensor> outputs = segment->outputs();
  segment->release_outputs();
  write(operation, graph).segment = std::move(segment);
  return outputs;
}

void ExecutorStep::pre_segment(const Operation& operation) {
  const Piece& here = piece(operation);
  const SequenceMix* mix = mix_of(operation);
  mark(operation);
  Buffer& inputs = write(operation, BufferKind::kMixInputs);
  if (here.line.empty()) {
    inputs.tensors = no_mix_inputs(operation);
    return;
  }
  const auto body = [this, layer = operation.layer, &here](const std::vector<at::Tensor>& in) {
    return model_.pre(access(), layer, in[0], TokenPlaces{here.rope, here.positions});
  };
  const auto outputs = run_segment(operation, BufferKind::kPreGraph, body, {hidden(operation)});
  const auto side = outputs.begin() + (mix == nullptr ? 3 : std::ssize(mix->input_rows()));
  write(operation, BufferKind::kSideOutputs).tensors.assign(side, outputs.end());
  inputs.tensors.assign(outputs.begin(), mix == nullptr ? outputs.begin() + 1 : side);
  if (mix == nullptr) {
    write(operation, BufferKind::kContext).rows.add(here.line, {outputs[1], outputs[2]});
  }
}

void ExecutorStep::store_hidden(const Operation& operation, const at::Tensor& output) {
  Buffer* next = buffers_.find(key_of(operation, BufferKind::kHidden, 1));
  if (next != nullptr) next->tensors = {output};
}

std::vector<at::Tensor> ExecutorStep::post_segment_inputs(const Operation& operation) {
  std::vector<at::Tensor> inputs = {read(operation, BufferKind::kMixOutput).tensors[0],
                                    hidden(operation)};
  const std::vector<at::Tensor>& side = read(operation, BufferKind::kSideOutputs).tensors;
  inputs.insert(inputs.end(), side.begin(), side.end());
  return inputs;
}

PostInputs ExecutorStep::post_inputs(const std::vector<at::Tensor>& segment_inputs) {
  return {segment_inputs[0], segment_inputs[1], std::span(segment_inputs).subspan(2)};
}

void ExecutorStep::post_segment(const Operation& operation) {
  mark(operation);
  if (model_.has_experts(operation.layer)) return post_to_experts(operation);
  if (piece(operation).line.empty()) return store_hidden(operation, hidden(operation));
  const auto body = [this, layer = operation.layer](const std::vector<at::Tensor>& in) {
    return std::vector<at::Tensor>{model_.post(access(), layer, post_inputs(in))};
  };
  const auto output =
      run_segment(operation, BufferKind::kPostGraph, body, post_segment_inputs(operation));
  store_hidden(operation, output[0]);
}

void ExecutorStep::post_backward(const Operation& operation) {
  Buffer& graph = read(operation, BufferKind::kPostGraph);
  Buffer& output_gradient = write(operation, BufferKind::kOutputGradient);
  Buffer& residual = write(operation, BufferKind::kResidualGradient);
  mark(operation);
  if (!graph.segment) {
    output_gradient.tensors = {no_mix_output(operation)};
    residual.tensors = {no_rows(model_.hidden_row())};
    return;
  }
  auto gradients = graph.segment->backward(
      model_.has_experts(operation.layer)
          ? post_output_gradients(operation)
          : std::vector<at::Tensor>{read(operation, BufferKind::kHiddenGradient, 1).tensors.at(0)});
  output_gradient.tensors = {gradients[0]};
  residual.tensors = {gradients[1]};
  write(operation, BufferKind::kSideGradients)
      .tensors.assign(gradients.begin() + 2, gradients.end());
}

void ExecutorStep::pre_backward(const Operation& operation) {
  Buffer& graph = read(operation, BufferKind::kPreGraph);
  const at::Tensor residual = read(operation, BufferKind::kResidualGradient).tensors.at(0);
  Buffer& result = write(operation, BufferKind::kHiddenGradient);
  if (!graph.segment) {
    result.tensors = {residual};
    return;
  }
  std::vector<at::Tensor> given = read(operation, BufferKind::kMixInputGradients).tensors;
  if (mix_of(operation) == nullptr) {
    const RowAccumulator& sums = *read(operation, BufferKind::kContextGradient).sums;
    for (const at::Tensor& sum : sums.rows(piece(operation).line)) {
      given.push_back(sum.to(model_.scalar_type()));
    }
  }
  const auto& side = read(operation, BufferKind::kSideGradients).tensors;
  given.insert(given.end(), side.begin(), side.end());
  auto gradients = graph.segment->backward(given);
  result.tensors = {gradients[0].add_(residual)};
}

void ExecutorStep::embed_backward(const Operation& operation) {
  const Piece& here = piece(operation);
  if (here.line.empty()) return;
  model_.embed_backward(access(), here.tokens,
                        read(operation, BufferKind::kHiddenGradient).tensors.at(0));
}

// ---- head and loss

HeadTargets ExecutorStep::head_targets(const Operation& operation) {
  const MicroBatch& batch = micro_batch(operation).data;
  const Range line = piece(operation).line;
  const auto begin = static_cast<size_t>(line.begin);
  const auto size = static_cast<size_t>(line.size());
  return {std::span(batch.targets).subspan(begin, size),
          std::span(batch.weights).subspan(begin, size)};
}

void ExecutorStep::head_loss(const Operation& operation) {
  Buffer& gradient = write(operation, BufferKind::kHiddenGradient);
  if (piece(operation).line.empty()) {
    gradient.tensors = {hidden(operation)};
    return;
  }
  auto result =
      model_.head_loss(access(), hidden(operation), head_targets(operation), options_.loss_scale);
  loss_sums_.push_back(std::move(result.weighted_loss_sum));
  gradient.tensors = {std::move(result.dx_TC)};
}

void ExecutorStep::head_eval(const Operation& operation) {
  const Range line = piece(operation).line;
  if (line.empty()) return;
  const at::Tensor& x_TC = hidden(operation);
  auto losses = model_.token_losses(access(), x_TC, head_targets(operation).targets);
  totals_.token_losses.push_back({operation.micro_batch, line, std::move(losses), {}});
  if (!options_.keep_logits) return;
  const at::Tensor logits = model_.logits(access(), x_TC).to(at::kDouble).cpu().contiguous();
  const double* values = logits.const_data_ptr<double>();
  totals_.token_losses.back().logits.assign(values, values + logits.numel());
}

}  // namespace longspan
