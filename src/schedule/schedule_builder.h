// Private to schedule/: builds the list of one rank.
//
// Why a class: operations refer to each other by what they write, and the band, the layer and the
// stored mode decide together what comes next. Each member function appends the operations of one
// stretch of the step, in the order in which the step runs: step_schedule.cpp has the step and its
// bands, layer_schedule.cpp what happens in a layer.
//
//   return ScheduleBuilder(options, micro_batches, rank).run();
//
// Used once, on one thread.
#pragma once

#include <map>
#include <vector>

#include "schedule/step_schedule.h"

namespace longspan {

class ScheduleBuilder {
 public:
  ScheduleBuilder(const ScheduleOptions& options, const std::vector<MicroBatchPlan>& micro_batches,
                  int rank)
      : options_(options), micro_batches_(micro_batches), rank_(rank) {}

  StepSchedule run();

 private:
  using Kind = OperationKind;
  using Buffer = BufferKind;

  struct Band {
    int begin = 0;
    int end = 0;
    bool last = false;
  };

  // ---- the step and its bands
  void train_micro_batch();
  void evaluate_micro_batch();
  void drop_context();
  void band_forward(const Band& band, StoredMode mode, Pass pass);
  void band_backward(const Band& band, StoredMode mode);
  void gather_head(Pass pass);
  void release_head(Pass pass);
  std::vector<BufferKey> head_reads(int chunk) const;

  // ---- weights and gradients
  bool group_has_tokens() const;
  bool uses_unit(int unit) const;
  int unit_of_experts(int layer) const;
  // Does nothing if the unit was gathered ahead.
  void gather(int unit, Pass pass);
  void gather_layer(int layer, Pass pass);
  void release(int unit, Pass pass);
  void open_gradients(int unit);
  // Closes what was reduced before, so that a unit's reduction has until the next one's to travel.
  void reduce_gradients(const std::vector<int>& units);
  void close_gradients();
  // The units of a layer that this rank works with.
  std::vector<int> layer_units(int layer) const;
  std::vector<BufferKey> with_weights(std::vector<BufferKey> reads, int unit) const;
  std::vector<BufferKey> with_gradients(std::vector<BufferKey> writes, int unit) const;

  // ---- a layer
  void layer_forward(const Band& band, int layer, StoredMode mode, Pass pass);
  void after_layer_forward(const Band& band, int layer, int chunk, StoredMode mode, Pass pass);
  void layer_backward(const Band& band, int layer, StoredMode mode);
  void recompute_layer(const Band& band, int layer, StoredMode mode);
  void recompute_post(int layer, int chunk);
  void drop_carried(const Band& band, int layer);
  void pre_segment(int layer, int chunk, bool keep_graph, Pass pass);
  void pre_backward(int layer, int chunk);
  // Post and, in a layer with experts, their exchange and combine.
  void finish_layer(int layer, int chunk, bool keep_graph, Pass pass);
  void finish_layer_backward(int layer, int chunk);
  void post_segment(int layer, int chunk, bool keep_graph, Pass pass);
  void post_backward(int layer, int chunk);
  void experts(int layer, int chunk, Pass pass);
  void experts_backward(int layer, int chunk);
  void combine_segment(int layer, int chunk, bool keep_graph, Pass pass);
  void combine_backward(int layer, int chunk);

  // ---- what looks back: core attention in three parts, or a mix in one
  void begin_mixing(const Band& band, int layer, int chunk, Pass pass);
  void compute_mixing(const Band& band, int layer, int chunk, Pass pass);
  void end_mixing(int layer, int chunk, Pass pass);
  void mix(const Band& band, int layer, int chunk, Pass pass);
  void mix_backward(const Band& band, int layer, int chunk);
  void attention(Kind kind, int layer, int chunk, Pass pass, int index);
  void begin_attention(const Band& band, int layer, int chunk, Pass pass);
  void compute_attention(int layer, int chunk, Pass pass);
  void finish_back_leg(int layer, int chunk, Pass pass);
  void end_forward_attention(int layer, int chunk, Pass pass);
  void end_backward_attention(int layer, int chunk);

  // In a context-only pass nobody needs the last layer's output, only its context.
  bool needs_output(int layer, StoredMode mode) const;
  // A mix writes its context itself, so it runs even then.
  bool needs_mixing(int layer, StoredMode mode) const {
    return needs_output(layer, mode) || !core_attention(layer);
  }
  // Whether contexts stay whole from forward to backward, so that nothing needs to be carried.
  bool context_kept(int layer) const;
  BufferKey context_source(const Band& band, int layer, int chunk) const;
  std::vector<BufferKey> context_gradients(int layer, int chunk) const;
  const AttentionPlan& plan(int chunk, Pass pass) const;

  bool core_attention(int layer) const { return options_.layer(layer).core_attention; }
  bool has_experts(int layer) const { return options_.layer(layer).experts; }

  const TokenLayout& layout() const { return *micro_batches_[micro_index()].layout; }
  size_t micro_index() const { return static_cast<size_t>(micro_batch_); }
  int num_bands() const {
    return (layout().num_chunks() + options_.band_chunks - 1) / options_.band_chunks;
  }
  Band band(int band_idx) const;

  BufferKey key(Buffer kind, int layer, int chunk = 0) const {
    return {kind, micro_batch_, layer, chunk};
  }
  // Weight units and open gradients are not tied to a micro-batch.
  static BufferKey unit_key(Buffer kind, int unit) { return {kind, 0, unit, 0}; }
  bool alive(const BufferKey& buffer) const { return last_writer_.contains(buffer); }
  void append(Operation operation);

  const ScheduleOptions& options_;
  const std::vector<MicroBatchPlan>& micro_batches_;
  int rank_;
  int micro_batch_ = 0;
  bool recomputing_layer_ = false;
  std::vector<int> reducing_;  // units whose gradients are reduced and not closed
  std::vector<Operation> operations_;
  std::map<BufferKey, int> last_writer_;
};

}  // namespace longspan
