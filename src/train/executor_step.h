// One run of a step schedule: the buffers that are alive, and what each operation does with them.
//
// Private to train/. executor_step.cpp holds the loop and the segments, executor_attention.cpp core
// attention, executor_mix.cpp mixes, executor_experts.cpp experts.
//
//   return ExecutorStep(parts, micro_batches, options).run(schedule);
//
// Used once, by one rank, on its thread.
#pragma once

#include <map>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "device/beside_queue.h"
#include "device/device_timer.h"
#include "experts/expert_exchange.h"
#include "model/transformer_model.h"
#include "train/buffer_table.h"
#include "train/executor.h"
#include "train/parameter_store.h"
#include "train/sequence_mixes.h"

namespace longspan {

// What lives longer than a step.
struct ExecutorParts {
  const TransformerModel& model;
  ParameterStore& store;
  Communicator& comm;
  const SequenceMixes& mixes;
  BesideQueue& collective_queue;
  Communicator* expert_group;  // null: this rank alone
};

class ExecutorStep {
 public:
  ExecutorStep(const ExecutorParts& parts, const std::vector<PlannedMicroBatch>& micro_batches,
               const RunOptions& options);

  StepTotals run(const StepSchedule& schedule);

 private:
  // The part of a micro-batch's chunk that lives on this rank.
  struct Piece {
    Range line;
    std::span<const int32_t> tokens;
    std::shared_ptr<const RopeTable> rope;
    std::vector<int64_t> positions;  // in their documents
  };

  void run_traced(const Operation& operation);
  void run(const Operation& operation);
  // Where the host waits for the device at the end of a step; layers with experts wait for choices.
  void read_back();
  void note_stored_bytes();

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
  void mark(const Operation& operation);
  at::Tensor& hidden(const Operation& operation) {
    return read(operation, BufferKind::kHidden).tensors.at(0);
  }
  at::Tensor no_rows(const std::vector<int64_t>& row_shape) const;
  std::vector<at::Tensor> no_mix_inputs(const Operation& operation) const;
  at::Tensor no_mix_output(const Operation& operation) const;

  const PlannedMicroBatch& micro_batch(const Operation& operation) const {
    return micro_batches_[static_cast<size_t>(operation.micro_batch)];
  }
  const TokenLayout& layout(const Operation& operation) const {
    return micro_batch(operation).layout;
  }
  const Piece& piece(const Operation& operation);
  ParameterAccess access() const { return {&store_, &store_}; }
  // Unique among the exchanges that may be in flight at once, and alike on all ranks.
  int64_t tag(const Operation& operation) const;

  // ---- weights and segments
  void run_collective(const Operation& operation);
  // Runs a segment, keeping its graph where the schedule says so. Graph and outputs come apart:
  // outputs are the executor's buffers.
  std::vector<at::Tensor> run_segment(const Operation& operation, BufferKind graph,
                                      const Segment::Body& body,
                                      const std::vector<at::Tensor>& inputs);
  void embed(const Operation& operation);
  void embed_backward(const Operation& operation);
  void pre_segment(const Operation& operation);
  void pre_backward(const Operation& operation);
  void post_segment(const Operation& operation);
  void post_backward(const Operation& operation);
  std::vector<at::Tensor> post_segment_inputs(const Operation& operation);
  static PostInputs post_inputs(const std::vector<at::Tensor>& segment_inputs);
  void store_hidden(const Operation& operation, const at::Tensor& output);

  // ---- head and loss
  HeadTargets head_targets(const Operation& operation);
  void head_loss(const Operation& operation);
  void head_eval(const Operation& operation);

  // ---- core attention
  RowStore key_rows(const Operation& operation);
  std::string attention_name(const Operation& operation) const;
  AttentionPassOptions attention_options(const Operation& operation) const;
  const ChunkPlans& plans(const Operation& operation) const;
  void begin_attention(const Operation& operation);
  void begin_forward(const Operation& operation);
  void begin_backward(const Operation& operation);
  RowStore key_value_gradients(const Operation& operation);
  void grow_sums(const std::vector<Range>& lines, Buffer& buffer);
  void attention_step(const Operation& operation);
  void end_attention(const Operation& operation);
  void carry_keys_and_values(const Operation& operation, Buffer& carried);

  // ---- mixes
  const SequenceMix* mix_of(const Operation& operation) const {
    return mixes_.of_layer(operation.layer);
  }
  MixCall mix_call(const Operation& operation, int chunk) const;
  std::vector<const MixContext*> mix_contexts(const Operation& operation);
  std::vector<MixContextGradient*> mix_gradients(const Operation& operation);
  void mix(const Operation& operation);
  void mix_forward(const Operation& operation);
  void mix_backward(const Operation& operation);
  void carry_context(const Operation& operation);
  // This rank's rows of choices that came from outside; undefined if the layer has none.
  at::Tensor given_rows(const std::map<int, at::Tensor>& by_layer, const Operation& operation);

  // ---- experts
  void post_to_experts(const Operation& operation);
  const at::Tensor& host_choices(const Operation& operation);
  void note_experts(const Operation& operation, const at::Tensor& ids_TK);
  std::vector<at::Tensor> post_output_gradients(const Operation& operation);
  void experts(const Operation& operation);
  void experts_forward(const Operation& operation);
  void experts_backward(const Operation& operation);
  void combine_segment(const Operation& operation);
  void combine_backward(const Operation& operation);
  ExpertExchange expert_exchange() const;
  ExpertCall expert_call(const Operation& operation) const;
  const ExpertParameters& own_experts(const Operation& operation) const;
  ExpertWeights expert_weights(const Operation& operation) const;
  ExpertWeightGradients expert_gradients(const Operation& operation);

  const TransformerModel& model_;
  ParameterStore& store_;
  Communicator& comm_;
  const SequenceMixes& mixes_;
  BesideQueue& collective_queue_;
  std::vector<BesideQueue::Moment> moments_;  // by operation; null: nothing to wait for
  Communicator* expert_group_;
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

}  // namespace longspan
