#include "train/executor.h"

#include <ATen/ATen.h>

#include <map>

#include "base/check.h"
#include "base/narrow.h"
#include "device/device.h"
#include "device/device_timer.h"
#include "model/transformer_model.h"
#include "train/buffer_table.h"
#include "train/parameter_store.h"

namespace longspan {
namespace {

using Kind = OperationKind;

constexpr int64_t kTagsPerPass = 1024;  // what an attention pass may use

// The part of a micro-batch's chunk that lives on this rank.
struct Piece {
  Range line;
  std::span<const int32_t> tokens;
  std::shared_ptr<const RopeTable> rope;
};

}  // namespace

class Executor::Step {
 public:
  Step(Executor& executor, const std::vector<PlannedMicroBatch>& micro_batches,
       const RunOptions& options)
      : model_(executor.model_),
        store_(executor.store_),
        comm_(executor.comm_),
        micro_batches_(micro_batches),
        options_(options),
        attention_time_(model_.device()),
        exchange_time_(model_.device()),
        collective_time_(model_.device()) {}

  StepTotals run(const StepSchedule& schedule) {
    for (const Operation& operation : schedule.operations) {
      if (operation.kind == Kind::kHeadLoss) note_stored_bytes();
      run(operation);
      for (const BufferKey& key : operation.drops) buffers_.drop(key);
      if (options_.account_bytes) {
        totals_.stored_bytes_peak = std::max(totals_.stored_bytes_peak, buffers_.held_bytes());
      }
    }
    buffers_.check_empty();
    read_back();
    return std::move(totals_);
  }

 private:
  void run(const Operation& operation) {
    switch (operation.kind) {
      case Kind::kGatherWeights:
      case Kind::kReduceGradients:
        return run_collective(operation);
      case Kind::kReleaseWeights:
        return store_.release(operation.layer);
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
        return operation.pass == Pass::kBackward ? begin_backward(operation)
                                                 : begin_forward(operation);
      case Kind::kAttentionOutStart:
      case Kind::kAttentionOutFinish:
      case Kind::kAttentionLaunch:
      case Kind::kAttentionBackStart:
      case Kind::kAttentionBackFinish:
        return attention_step(operation);
      case Kind::kAttentionEnd:
        return operation.pass == Pass::kBackward ? end_backward(operation) : end_forward(operation);
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

  // The one place of a training step where the host waits for the device.
  void read_back() {
    for (const at::Tensor& sum : loss_sums_) totals_.weighted_loss_sum += sum.item<double>();
    totals_.attention_s = attention_time_.take_seconds();
    totals_.exchange_s = exchange_time_.take_seconds();
    totals_.collective_s = collective_time_.take_seconds();
  }

  // ---- buffers

  static BufferKey key_of(const Operation& operation, BufferKind kind, int layer_step = 0) {
    return {kind, operation.micro_batch, operation.layer + layer_step, operation.chunk};
  }
  Buffer& write(const Operation& operation, BufferKind kind) {
    return buffers_.write(key_of(operation, kind));
  }
  Buffer& read(const Operation& operation, BufferKind kind, int layer_step = 0) {
    return buffers_.read(key_of(operation, kind, layer_step));
  }
  // Makes all buffers that the operation writes.
  void mark(const Operation& operation) {
    for (const BufferKey& key : operation.writes) buffers_.write(key);
  }
  at::Tensor& hidden(const Operation& operation) {
    return read(operation, BufferKind::kHidden).tensors.at(0);
  }

  const PlannedMicroBatch& micro_batch(const Operation& operation) const {
    return micro_batches_[static_cast<size_t>(operation.micro_batch)];
  }
  const TokenLayout& layout(const Operation& operation) const {
    return micro_batch(operation).layout;
  }

  const Piece& piece(const Operation& operation) {
    const std::pair<int, int> key{operation.micro_batch, operation.chunk};
    const auto found = pieces_.find(key);
    if (found != pieces_.end()) return found->second;
    Piece made;
    made.line = layout(operation).piece(operation.chunk, comm_.rank());
    made.tokens =
        std::span(micro_batch(operation).data.tokens)
            .subspan(static_cast<size_t>(made.line.begin), static_cast<size_t>(made.line.size()));
    std::vector<int64_t> positions;
    for (const DocumentPart& part : layout(operation).document_parts(made.line)) {
      for (int64_t at = part.positions.begin; at < part.positions.end; ++at)
        positions.push_back(at);
    }
    made.rope = model_.rope_table(positions);
    return pieces_.emplace(key, std::move(made)).first->second;
  }

  ParameterAccess access() const { return {&store_, &store_}; }

  // ---- weights

  void run_collective(const Operation& operation) {
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

  at::Tensor no_rows(std::initializer_list<int64_t> row_shape) const {
    std::vector<int64_t> shape = {0};
    shape.insert(shape.end(), row_shape.begin(), row_shape.end());
    return at::empty(shape, model_.tensors());
  }

  void embed(const Operation& operation) {
    const Piece& here = piece(operation);
    write(operation, BufferKind::kHidden).tensors = {
        here.line.empty() ? no_rows({model_.hidden_size()}) : model_.embed(access(), here.tokens)};
  }

  // Runs a segment, keeping its graph where the schedule says so. Graph and outputs come apart:
  // outputs are the executor's buffers.
  std::vector<at::Tensor> run_segment(const Operation& operation, BufferKind graph,
                                      const Segment::Body& body,
                                      const std::vector<at::Tensor>& inputs) {
    if (!operation.keep_graph) return Segment::run(body, inputs);
    auto segment = std::make_unique<Segment>(Segment::record(body, inputs));
    std::vector<at::Tensor> outputs = segment->outputs();
    segment->release_outputs();
    write(operation, graph).segment = std::move(segment);
    return outputs;
  }

  void pre_segment(const Operation& operation) {
    const Piece& here = piece(operation);
    mark(operation);
    Buffer& query = write(operation, BufferKind::kQuery);
    Buffer& key_value = write(operation, BufferKind::kKeyValue);
    if (here.line.empty()) {
      const AttentionShape& shape = model_.attention_shape();
      query.tensors = {no_rows({shape.heads, shape.head_width})};
      return;
    }
    const auto body = [this, layer = operation.layer,
                       rope = here.rope](const std::vector<at::Tensor>& in) {
      return model_.pre(access(), layer, in[0], rope);
    };
    auto qkv = run_segment(operation, BufferKind::kPreGraph, body, {hidden(operation)});
    query.tensors = {qkv[0]};
    key_value.rows.add(here.line, {qkv[1], qkv[2]});
  }

  void post_segment(const Operation& operation) {
    const Piece& here = piece(operation);
    mark(operation);
    at::Tensor output = hidden(operation);
    if (!here.line.empty()) {
      const auto body = [this, layer = operation.layer](const std::vector<at::Tensor>& in) {
        return std::vector<at::Tensor>{model_.post(access(), layer, in[0], in[1])};
      };
      output = run_segment(
          operation, BufferKind::kPostGraph, body,
          {read(operation, BufferKind::kAttentionOutput).tensors[0], hidden(operation)})[0];
    }
    Buffer* next = buffers_.find(key_of(operation, BufferKind::kHidden, 1));
    if (next != nullptr) next->tensors = {output};
  }

  void post_backward(const Operation& operation) {
    Buffer& graph = read(operation, BufferKind::kPostGraph);
    const at::Tensor dy = read(operation, BufferKind::kHiddenGradient, 1).tensors.at(0);
    Buffer& output_gradient = write(operation, BufferKind::kOutputGradient);
    Buffer& residual = write(operation, BufferKind::kResidualGradient);
    if (!graph.segment) {
      const AttentionShape& shape = model_.attention_shape();
      output_gradient.tensors = {no_rows({shape.heads, shape.head_width})};
      residual.tensors = {dy};
      return;
    }
    auto gradients = graph.segment->backward({dy});
    output_gradient.tensors = {gradients[0]};
    residual.tensors = {gradients[1]};
  }

  void pre_backward(const Operation& operation) {
    Buffer& graph = read(operation, BufferKind::kPreGraph);
    const at::Tensor residual = read(operation, BufferKind::kResidualGradient).tensors.at(0);
    Buffer& result = write(operation, BufferKind::kHiddenGradient);
    if (!graph.segment) {
      result.tensors = {residual};
      return;
    }
    const at::Tensor dq = read(operation, BufferKind::kQueryGradient).tensors.at(0);
    const auto dkv =
        read(operation, BufferKind::kKeyValueGradient).sums->rows(piece(operation).line);
    const at::ScalarType type = model_.scalar_type();
    auto gradients = graph.segment->backward({dq, dkv.at(0).to(type), dkv.at(1).to(type)});
    result.tensors = {gradients[0].add_(residual)};
  }

  void embed_backward(const Operation& operation) {
    const Piece& here = piece(operation);
    if (here.line.empty()) return;
    model_.embed_backward(access(), here.tokens,
                          read(operation, BufferKind::kHiddenGradient).tensors.at(0));
  }

  // ---- head and loss

  HeadTargets head_targets(const Operation& operation) {
    const MicroBatch& batch = micro_batch(operation).data;
    const Range line = piece(operation).line;
    const auto begin = static_cast<size_t>(line.begin);
    const auto size = static_cast<size_t>(line.size());
    return {std::span(batch.targets).subspan(begin, size),
            std::span(batch.weights).subspan(begin, size)};
  }

  void head_loss(const Operation& operation) {
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

  void head_eval(const Operation& operation) {
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

  // ---- attention

  // Unique among the passes that may be in flight at once, and alike on all ranks.
  int64_t tag(const Operation& operation) const {
    const auto layers = static_cast<int64_t>(model_.num_layers());
    const auto chunks = static_cast<int64_t>(layout(operation).num_chunks());
    const int64_t pass = operation.pass == Pass::kForward     ? 0
                         : operation.pass == Pass::kRecompute ? 1
                                                              : 2;
    const int64_t index =
        ((operation.micro_batch * layers + operation.layer) * chunks + operation.chunk) * 3 + pass;
    return index * kTagsPerPass;
  }

  // The rows that the pass of this chunk may read here, wherever the schedule keeps them.
  RowStore key_rows(const Operation& operation) {
    RowStore rows;
    for (const BufferKey& key : operation.reads) {
      if (key.kind == BufferKind::kKeyValue || key.kind == BufferKind::kCarriedKeyValue)
        rows.add(buffers_.read(key).rows);
    }
    return rows;
  }

  std::string attention_name(const Operation& operation) const {
    return text("attention ", pass_name(operation.pass), ", layer ", operation.layer, ", chunk ",
                operation.chunk, ", micro-batch ", operation.micro_batch);
  }

  AttentionPassOptions attention_options(const Operation& operation) const {
    return {.shape = model_.attention_shape(),
            .type = model_.scalar_type(),
            .tag = tag(operation),
            .op = attention_name(operation),
            .device = model_.device()};
  }

  const ChunkPlans& plans(const Operation& operation) const {
    return micro_batch(operation).plans[static_cast<size_t>(operation.chunk)];
  }

  void begin_forward(const Operation& operation) {
    auto pass = std::make_unique<AttentionForwardPass>(plans(operation).forward, layout(operation),
                                                       comm_, attention_options(operation));
    pass->begin(read(operation, BufferKind::kQuery).tensors.at(0), key_rows(operation));
    write(operation, BufferKind::kAttentionPass).forward_pass = std::move(pass);
  }

  void begin_backward(const Operation& operation) {
    auto pass = std::make_unique<AttentionBackwardPass>(
        plans(operation).backward, layout(operation), comm_, attention_options(operation));
    const Buffer& output = read(operation, BufferKind::kAttentionOutput);
    Buffer& buffer = write(operation, BufferKind::kAttentionPass);
    buffer.sums = std::make_unique<RowAccumulator>(key_value_gradients(operation));
    pass->begin({.q_THK = read(operation, BufferKind::kQuery).tensors.at(0),
                 .o_THK = output.tensors.at(0),
                 .lse_TH = output.tensors.at(1),
                 .d_o_THK = read(operation, BufferKind::kOutputGradient).tensors.at(0)},
                key_rows(operation), *buffer.sums);
    buffer.backward_pass = std::move(pass);
  }

  // The sums of dK and dV of all own rows that this chunk looks back at, as one store.
  RowStore key_value_gradients(const Operation& operation) {
    RowStore all;
    for (const BufferKey& key : operation.reads) {
      if (key.kind != BufferKind::kKeyValue && key.kind != BufferKind::kCarriedKeyValue) continue;
      const Range whole = layout(operation).piece(key.chunk, comm_.rank());
      const std::vector<Range> lines =
          key.kind == BufferKind::kKeyValue ? normalize({whole}) : buffers_.read(key).carried_rows;
      Buffer& buffer =
          buffers_.write({BufferKind::kKeyValueGradient, key.micro_batch, key.layer, key.chunk});
      grow_sums(lines, buffer);
      all.add(buffer.sums->store());
    }
    return all;
  }

  // Later bands have summed the carried rows only; from the band's own backward on all its rows
  // count.
  void grow_sums(const std::vector<Range>& lines, Buffer& buffer) {
    if (buffer.sums && buffer.carried_rows == lines) return;
    const AttentionShape& shape = model_.attention_shape();
    const std::vector<int64_t> row = {shape.key_heads, shape.head_width};
    auto grown = std::make_unique<RowAccumulator>(
        lines, std::vector<std::vector<int64_t>>{row, row},
        model_.tensors().dtype(accumulate_type(model_.scalar_type())));
    if (buffer.sums) {
      for (const Range& line : buffer.carried_rows) grown->add(line, buffer.sums->rows(line));
    }
    buffer.sums = std::move(grown);
    buffer.carried_rows = lines;
  }

  void attention_step(const Operation& operation) {
    Buffer& buffer = read(operation, BufferKind::kAttentionPass);
    DeviceTimer& timer =
        operation.kind == Kind::kAttentionLaunch ? attention_time_ : exchange_time_;
    timer.start();
    if (buffer.forward_pass) {
      step_of(*buffer.forward_pass, operation);
    } else {
      step_of(*buffer.backward_pass, operation);
    }
    timer.stop();
  }

  template <typename AttentionPass>
  void step_of(AttentionPass& pass, const Operation& operation) {
    switch (operation.kind) {
      case Kind::kAttentionOutStart:
        return pass.start_out(operation.index);
      case Kind::kAttentionOutFinish:
        return pass.finish_out(operation.index);
      case Kind::kAttentionLaunch:
        comm_.activity(describe(operation));
        return pass.run_group(operation.index);
      case Kind::kAttentionBackStart:
        return pass.start_back(operation.index);
      default:
        return pass.finish_back(operation.index);
    }
  }

  void end_forward(const Operation& operation) {
    auto result = read(operation, BufferKind::kAttentionPass).forward_pass->finish();
    write(operation, BufferKind::kAttentionOutput).tensors = {result.o_THK, result.lse_TH};
  }

  void end_backward(const Operation& operation) {
    at::Tensor dq = read(operation, BufferKind::kAttentionPass).backward_pass->finish();
    write(operation, BufferKind::kQueryGradient).tensors = {std::move(dq)};
  }

  void carry_context(const Operation& operation) {
    Buffer& carried = write(operation, BufferKind::kCarriedKeyValue);
    carried.carried_rows = layout(operation).carried_rows(operation.chunk, comm_.rank(),
                                                          /*first_later_chunk=*/operation.index);
    const RowStore& whole = read(operation, BufferKind::kKeyValue).rows;
    for (const Range& line : carried.carried_rows) {
      std::vector<at::Tensor> kept;
      for (const at::Tensor& rows : whole.rows(line)) kept.push_back(rows.clone());
      carried.rows.add(line, std::move(kept));
    }
  }

  void note_stored_bytes() {
    if (options_.account_bytes && totals_.stored_bytes == 0)
      totals_.stored_bytes = buffers_.held_bytes();
  }

  const TransformerModel& model_;
  ParameterStore& store_;
  Communicator& comm_;
  const std::vector<PlannedMicroBatch>& micro_batches_;
  const RunOptions& options_;
  BufferTable buffers_;
  std::map<std::pair<int, int>, Piece> pieces_;
  std::vector<at::Tensor> loss_sums_;  // of each head and loss, on the device
  DeviceTimer attention_time_;
  DeviceTimer exchange_time_;
  DeviceTimer collective_time_;
  StepTotals totals_;
};

Executor::Executor(const TransformerModel& model, ParameterStore& store, Communicator& comm)
    : model_(model), store_(store), comm_(comm) {}

Executor::~Executor() = default;

StepTotals Executor::run(const StepSchedule& schedule,
                         const std::vector<PlannedMicroBatch>& micro_batches,
                         const RunOptions& options) {
  return Step(*this, micro_batches, options).run(schedule);
}

}  // namespace longspan
