#include "schedule/step_schedule.h"

#include <algorithm>
#include <map>

#include "base/check.h"

namespace longspan {
namespace {

using Kind = OperationKind;
using Buffer = BufferKind;

// Builds the list of one rank. Each member function appends the operations of one stretch of the
// step, in the order in which the step runs; run() is the step as a whole.
class ScheduleBuilder {
 public:
  ScheduleBuilder(const ScheduleOptions& options, const std::vector<MicroBatchPlan>& micro_batches,
                  int rank)
      : options_(options), micro_batches_(micro_batches), rank_(rank) {}

  StepSchedule run() {
    for (micro_batch_ = 0; micro_batch_ < static_cast<int>(micro_batches_.size()); ++micro_batch_) {
      if (options_.evaluate) {
        evaluate_micro_batch();
      } else {
        train_micro_batch();
      }
    }
    micro_batch_ = 0;
    if (!options_.evaluate) append({.kind = Kind::kOptimizerStep, .pass = Pass::kBackward});
    return {rank_, std::move(operations_)};
  }

 private:
  struct Band {
    int begin = 0;
    int end = 0;
    bool last = false;
  };

  const TokenLayout& layout() const { return *micro_batches_[micro_index()].layout; }
  size_t micro_index() const { return static_cast<size_t>(micro_batch_); }
  int num_bands() const {
    return (layout().num_chunks() + options_.band_chunks - 1) / options_.band_chunks;
  }
  Band band(int band_idx) const {
    const int begin = band_idx * options_.band_chunks;
    return {begin, std::min(begin + options_.band_chunks, layout().num_chunks()),
            band_idx + 1 == num_bands()};
  }
  BufferKey key(Buffer kind, int layer, int chunk = 0) const {
    return {kind, micro_batch_, layer, chunk};
  }
  // Weight units and open gradients are not tied to a micro-batch.
  static BufferKey unit_key(Buffer kind, int unit) { return {kind, 0, unit, 0}; }

  // A shard group in which no rank has a token of this micro-batch needs no weights for it.
  bool group_has_tokens() const {
    const int first = rank_ / options_.shard_group * options_.shard_group;
    for (int rank = first; rank < first + options_.shard_group; ++rank) {
      for (int chunk = 0; chunk < layout().num_chunks(); ++chunk) {
        if (!layout().piece(chunk, rank).empty()) return true;
      }
    }
    return false;
  }

  void append(Operation operation) {
    operation.micro_batch = micro_batch_;
    const int idx = static_cast<int>(operations_.size());
    for (const auto* keys : {&operation.reads, &operation.writes}) {
      for (const BufferKey& buffer : *keys) {
        const auto writer = last_writer_.find(buffer);
        if (writer != last_writer_.end()) operation.waits_for.push_back(writer->second);
      }
    }
    std::sort(operation.waits_for.begin(), operation.waits_for.end());
    const auto repeated = std::unique(operation.waits_for.begin(), operation.waits_for.end());
    operation.waits_for.erase(repeated, operation.waits_for.end());
    for (const BufferKey& buffer : operation.writes) last_writer_[buffer] = idx;
    for (const BufferKey& buffer : operation.drops) last_writer_.erase(buffer);
    operations_.push_back(std::move(operation));
  }

  void gather(int unit, Pass pass) {
    if (!group_has_tokens()) return;
    append({.kind = Kind::kGatherWeights,
            .pass = pass,
            .layer = unit,
            .writes = {unit_key(Buffer::kWeights, unit)}});
  }
  void release(int unit, Pass pass) {
    if (!group_has_tokens()) return;
    append({.kind = Kind::kReleaseWeights,
            .pass = pass,
            .layer = unit,
            .drops = {unit_key(Buffer::kWeights, unit)}});
  }
  void open_gradients(int unit) {
    if (!group_has_tokens()) return;
    append({.kind = Kind::kOpenGradients,
            .pass = Pass::kBackward,
            .layer = unit,
            .writes = {unit_key(Buffer::kGradients, unit)}});
  }
  void reduce_gradients(int unit) {
    if (!group_has_tokens()) return;
    append({.kind = Kind::kReduceGradients,
            .pass = Pass::kBackward,
            .layer = unit,
            .reads = {unit_key(Buffer::kGradients, unit)},
            .drops = {unit_key(Buffer::kGradients, unit)}});
  }
  std::vector<BufferKey> with_weights(std::vector<BufferKey> reads, int unit) const {
    if (group_has_tokens()) reads.push_back(unit_key(Buffer::kWeights, unit));
    return reads;
  }
  std::vector<BufferKey> with_gradients(std::vector<BufferKey> writes, int unit) const {
    if (group_has_tokens()) writes.push_back(unit_key(Buffer::kGradients, unit));
    return writes;
  }

  void train_micro_batch() {
    const bool context_only = options_.stored_mode == StoredMode::kContextOnly;
    const StoredMode inner = context_only ? options_.inner_mode : options_.stored_mode;
    for (int band_idx = 0; band_idx < num_bands(); ++band_idx) {
      const Band current = band(band_idx);
      band_forward(current, context_only && !current.last ? StoredMode::kContextOnly : inner,
                   Pass::kForward);
    }
    for (int band_idx = num_bands() - 1; band_idx >= 0; --band_idx) {
      const Band current = band(band_idx);
      if (context_only && !current.last) band_forward(current, inner, Pass::kRecompute);
      band_backward(current, inner);
    }
  }

  void evaluate_micro_batch() {
    for (int band_idx = 0; band_idx < num_bands(); ++band_idx) {
      const Band current = band(band_idx);
      band_forward(current, StoredMode::kContextOnly, Pass::kForward);
      gather_head(Pass::kForward);
      for (int chunk = current.begin; chunk < current.end; ++chunk) {
        append({.kind = Kind::kHeadEval,
                .layer = options_.num_layers,
                .chunk = chunk,
                .reads = head_reads(chunk),
                .drops = {key(Buffer::kHidden, options_.num_layers, chunk)}});
      }
      release_head(Pass::kForward);
    }
    drop_context();
  }

  // After an evaluation no backward frees what was carried.
  void drop_context() {
    Operation drop{.kind = Kind::kDrop};
    for (int layer = 0; layer < options_.num_layers; ++layer) {
      for (int chunk = 0; chunk < band(num_bands() - 1).begin; ++chunk) {
        drop.drops.push_back(key(Buffer::kCarriedKeyValue, layer, chunk));
      }
    }
    append(std::move(drop));
  }

  void band_forward(const Band& band, StoredMode mode, Pass pass) {
    gather(kEmbeddingUnit, pass);
    for (int chunk = band.begin; chunk < band.end; ++chunk) {
      append({.kind = Kind::kEmbed,
              .pass = pass,
              .chunk = chunk,
              .reads = with_weights({}, kEmbeddingUnit),
              .writes = {key(Buffer::kHidden, 0, chunk)}});
    }
    release(kEmbeddingUnit, pass);
    for (int layer = 0; layer < options_.num_layers; ++layer) {
      layer_forward(band, layer, mode, pass);
    }
  }

  // In a context-only pass the last layer's output is not needed, only its keys and values.
  bool needs_output(int layer, StoredMode mode) const {
    return options_.evaluate || mode != StoredMode::kContextOnly || layer + 1 < options_.num_layers;
  }

  void layer_forward(const Band& band, int layer, StoredMode mode, Pass pass) {
    gather(layer_unit(layer), pass);
    const bool output = needs_output(layer, mode);
    const bool keep = mode == StoredMode::kKeep;
    pipeline(
        band, /*reverse=*/false,
        [&](int chunk) {
          pre_segment(layer, chunk, keep, pass);
          if (output) begin_attention(band, layer, chunk, pass);
        },
        [&](int chunk) {
          if (output) compute_attention(layer, chunk, pass);
        },
        [&](int chunk) {
          if (!output) return;
          end_forward_attention(layer, chunk, pass);
          post_segment(layer, chunk, keep, pass);
        });
    for (int chunk = band.begin; chunk < band.end; ++chunk) {
      after_layer_forward(band, layer, chunk, mode, pass);
    }
    release(layer_unit(layer), pass);
  }

  // What of a layer survives its forward, by stored mode.
  void after_layer_forward(const Band& band, int layer, int chunk, StoredMode mode, Pass pass) {
    Operation drop{.kind = Kind::kDrop, .pass = pass, .layer = layer, .chunk = chunk};
    if (mode == StoredMode::kKeep) {
      drop.drops = {key(Buffer::kHidden, layer, chunk)};  // the graphs hold what they need of it
      append(std::move(drop));
      return;
    }
    if (!band.last && pass == Pass::kForward) {
      append({.kind = Kind::kCarryContext,
              .pass = pass,
              .layer = layer,
              .chunk = chunk,
              .index = band.end,
              .reads = {key(Buffer::kKeyValue, layer, chunk)},
              .writes = {key(Buffer::kCarriedKeyValue, layer, chunk)}});
    }
    drop.drops = {key(Buffer::kQuery, layer, chunk), key(Buffer::kKeyValue, layer, chunk)};
    if (mode == StoredMode::kContextOnly) drop.drops.push_back(key(Buffer::kHidden, layer, chunk));
    const bool output = needs_output(layer, mode);
    if (output && mode != StoredMode::kLayerInputsAttention) {
      drop.drops.push_back(key(Buffer::kAttentionOutput, layer, chunk));
    }
    append(std::move(drop));
  }

  // Two chunks in flight: while one chunk's rows travel, the other computes. `begin`, `compute`,
  // `end` of a chunk run in that order; the next chunk begins before this one computes, and ends
  // after the next has computed.
  template <typename Begin, typename Compute, typename End>
  void pipeline(const Band& band, bool reverse, Begin begin, Compute compute, End end) {
    const int count = band.end - band.begin;
    const auto chunk = [&](int step) { return reverse ? band.end - 1 - step : band.begin + step; };
    for (int step = 0; step < count + 2; ++step) {
      if (step < count) begin(chunk(step));
      if (step >= 1 && step - 1 < count) compute(chunk(step - 1));
      if (step >= 2) end(chunk(step - 2));
    }
  }

  void pre_segment(int layer, int chunk, bool keep_graph, Pass pass) {
    Operation operation{
        .kind = Kind::kPreSegment,
        .pass = pass,
        .layer = layer,
        .chunk = chunk,
        .keep_graph = keep_graph,
        .reads = with_weights({key(Buffer::kHidden, layer, chunk)}, layer_unit(layer)),
        .writes = {key(Buffer::kQuery, layer, chunk), key(Buffer::kKeyValue, layer, chunk)}};
    if (keep_graph) operation.writes.push_back(key(Buffer::kPreGraph, layer, chunk));
    append(std::move(operation));
  }

  void post_segment(int layer, int chunk, bool keep_graph, Pass pass) {
    Operation operation{.kind = Kind::kPostSegment,
                        .pass = pass,
                        .layer = layer,
                        .chunk = chunk,
                        .keep_graph = keep_graph,
                        .reads = with_weights({key(Buffer::kHidden, layer, chunk),
                                               key(Buffer::kAttentionOutput, layer, chunk)},
                                              layer_unit(layer)),
                        .writes = {}};
    // The output of a layer's recompute is known already: the next layer's backward has run.
    if (!recomputing_layer_) operation.writes.push_back(key(Buffer::kHidden, layer + 1, chunk));
    if (keep_graph) operation.writes.push_back(key(Buffer::kPostGraph, layer, chunk));
    append(std::move(operation));
  }

  // Where the keys and values of `chunk` stand while `band` is at work on a layer.
  BufferKey key_value_source(const Band& band, int layer, int chunk) const {
    const bool kept_whole = !options_.evaluate && options_.stored_mode == StoredMode::kKeep;
    const bool own_band = chunk >= band.begin;
    return key(own_band || kept_whole ? Buffer::kKeyValue : Buffer::kCarriedKeyValue, layer, chunk);
  }

  const AttentionPlan& plan(int chunk, Pass pass) const {
    const ChunkPlans& plans = (*micro_batches_[micro_index()].chunks)[static_cast<size_t>(chunk)];
    return pass == Pass::kBackward ? plans.backward : plans.forward;
  }

  void attention(Kind kind, int layer, int chunk, Pass pass, int index) {
    append({.kind = kind,
            .pass = pass,
            .layer = layer,
            .chunk = chunk,
            .index = index,
            .reads = {key(Buffer::kAttentionPass, layer, chunk)},
            .writes = {key(Buffer::kAttentionPass, layer, chunk)}});
  }

  // What the backward of a chunk adds to: its own keys and values and all earlier ones.
  std::vector<BufferKey> key_value_gradients(int layer, int chunk) const {
    std::vector<BufferKey> keys;
    for (int seen = 0; seen <= chunk; ++seen)
      keys.push_back(key(Buffer::kKeyValueGradient, layer, seen));
    return keys;
  }

  void begin_attention(const Band& band, int layer, int chunk, Pass pass) {
    Operation begin{.kind = Kind::kAttentionBegin,
                    .pass = pass,
                    .layer = layer,
                    .chunk = chunk,
                    .reads = {key(Buffer::kQuery, layer, chunk)},
                    .writes = {key(Buffer::kAttentionPass, layer, chunk)}};
    for (int seen = 0; seen <= chunk; ++seen)
      begin.reads.push_back(key_value_source(band, layer, seen));
    if (pass == Pass::kBackward) {
      begin.reads.push_back(key(Buffer::kAttentionOutput, layer, chunk));
      begin.reads.push_back(key(Buffer::kOutputGradient, layer, chunk));
      for (const BufferKey& gradient : key_value_gradients(layer, chunk))
        begin.writes.push_back(gradient);
    }
    append(std::move(begin));
    if (!plan(chunk, pass).out.empty()) attention(Kind::kAttentionOutStart, layer, chunk, pass, 0);
  }

  // The rounds of the out leg, each launch group as soon as its rounds are there, and the first
  // step home.
  void compute_attention(int layer, int chunk, Pass pass) {
    const AttentionPlan& passed = plan(chunk, pass);
    const auto& groups = passed.servers[static_cast<size_t>(rank_)].groups;
    const int rounds = static_cast<int>(passed.out.size());
    size_t group = 0;
    for (int round = 0; round <= rounds; ++round) {
      for (; group < groups.size() && groups[group].after_round == round; ++group) {
        attention(Kind::kAttentionLaunch, layer, chunk, pass, static_cast<int>(group));
      }
      if (round == rounds) break;
      attention(Kind::kAttentionOutFinish, layer, chunk, pass, round);
      if (round + 1 < rounds) attention(Kind::kAttentionOutStart, layer, chunk, pass, round + 1);
    }
    LONGSPAN_CHECK(group == groups.size(), "launched ", group, " of ", groups.size(), " groups");
    if (!passed.back.empty()) attention(Kind::kAttentionBackStart, layer, chunk, pass, 0);
  }

  void finish_back_leg(int layer, int chunk, Pass pass) {
    const int rounds = static_cast<int>(plan(chunk, pass).back.size());
    for (int round = 0; round < rounds; ++round) {
      if (round > 0) attention(Kind::kAttentionBackStart, layer, chunk, pass, round);
      attention(Kind::kAttentionBackFinish, layer, chunk, pass, round);
    }
  }

  void end_forward_attention(int layer, int chunk, Pass pass) {
    finish_back_leg(layer, chunk, pass);
    append({.kind = Kind::kAttentionEnd,
            .pass = pass,
            .layer = layer,
            .chunk = chunk,
            .reads = {key(Buffer::kAttentionPass, layer, chunk)},
            .writes = {key(Buffer::kAttentionOutput, layer, chunk)},
            .drops = {key(Buffer::kAttentionPass, layer, chunk)}});
  }

  void end_backward_attention(int layer, int chunk) {
    finish_back_leg(layer, chunk, Pass::kBackward);
    Operation end{
        .kind = Kind::kAttentionEnd,
        .pass = Pass::kBackward,
        .layer = layer,
        .chunk = chunk,
        .reads = {key(Buffer::kAttentionPass, layer, chunk)},
        .writes = {key(Buffer::kQueryGradient, layer, chunk)},
        .drops = {key(Buffer::kAttentionPass, layer, chunk), key(Buffer::kQuery, layer, chunk),
                  key(Buffer::kAttentionOutput, layer, chunk),
                  key(Buffer::kOutputGradient, layer, chunk)}};
    for (const BufferKey& gradient : key_value_gradients(layer, chunk))
      end.writes.push_back(gradient);
    append(std::move(end));
  }

  void gather_head(Pass pass) {
    gather(final_unit(options_.num_layers), pass);
    if (options_.tied_embeddings) gather(kEmbeddingUnit, pass);
  }
  void release_head(Pass pass) {
    release(final_unit(options_.num_layers), pass);
    if (options_.tied_embeddings) release(kEmbeddingUnit, pass);
  }
  std::vector<BufferKey> head_reads(int chunk) const {
    auto reads = with_weights({key(Buffer::kHidden, options_.num_layers, chunk)},
                              final_unit(options_.num_layers));
    return options_.tied_embeddings ? with_weights(std::move(reads), kEmbeddingUnit) : reads;
  }

  void band_backward(const Band& band, StoredMode mode) {
    const int last = options_.num_layers;
    gather_head(Pass::kBackward);
    open_gradients(final_unit(last));
    if (options_.tied_embeddings) open_gradients(kEmbeddingUnit);
    for (int chunk = band.begin; chunk < band.end; ++chunk) {
      auto writes = with_gradients({key(Buffer::kHiddenGradient, last, chunk)}, final_unit(last));
      if (options_.tied_embeddings) writes = with_gradients(std::move(writes), kEmbeddingUnit);
      append({.kind = Kind::kHeadLoss,
              .pass = Pass::kBackward,
              .layer = last,
              .chunk = chunk,
              .reads = head_reads(chunk),
              .writes = std::move(writes),
              .drops = {key(Buffer::kHidden, last, chunk)}});
    }
    release_head(Pass::kBackward);
    reduce_gradients(final_unit(last));
    for (int layer = last - 1; layer >= 0; --layer) layer_backward(band, layer, mode);
    if (!options_.tied_embeddings) open_gradients(kEmbeddingUnit);
    for (int chunk = band.begin; chunk < band.end; ++chunk) {
      append({.kind = Kind::kEmbedBackward,
              .pass = Pass::kBackward,
              .chunk = chunk,
              .reads = {key(Buffer::kHiddenGradient, 0, chunk)},
              .writes = with_gradients({}, kEmbeddingUnit),
              .drops = {key(Buffer::kHiddenGradient, 0, chunk)}});
    }
    reduce_gradients(kEmbeddingUnit);
  }

  void layer_backward(const Band& band, int layer, StoredMode mode) {
    gather(layer_unit(layer), Pass::kBackward);
    open_gradients(layer_unit(layer));
    if (mode != StoredMode::kKeep) recompute_layer(band, layer, mode);
    if (!band.last && options_.stored_mode != StoredMode::kKeep) drop_carried(band, layer);
    pipeline(
        band, /*reverse=*/true,
        [&](int chunk) {
          if (mode != StoredMode::kKeep) recompute_post(layer, chunk);
          post_backward(layer, chunk);
          begin_attention(band, layer, chunk, Pass::kBackward);
        },
        [&](int chunk) { compute_attention(layer, chunk, Pass::kBackward); },
        [&](int chunk) {
          end_backward_attention(layer, chunk);
          pre_backward(layer, chunk);
        });
    release(layer_unit(layer), Pass::kBackward);
    reduce_gradients(layer_unit(layer));
  }

  // Pre again for all chunks of the band, and attention where its output was not kept.
  void recompute_layer(const Band& band, int layer, StoredMode mode) {
    const bool attention_again = mode == StoredMode::kLayerInputs;
    pipeline(
        band, /*reverse=*/false,
        [&](int chunk) {
          pre_segment(layer, chunk, /*keep_graph=*/true, Pass::kRecompute);
          if (attention_again) begin_attention(band, layer, chunk, Pass::kRecompute);
        },
        [&](int chunk) {
          if (attention_again) compute_attention(layer, chunk, Pass::kRecompute);
        },
        [&](int chunk) {
          if (attention_again) end_forward_attention(layer, chunk, Pass::kRecompute);
        });
  }

  void recompute_post(int layer, int chunk) {
    recomputing_layer_ = true;
    post_segment(layer, chunk, /*keep_graph=*/true, Pass::kRecompute);
    recomputing_layer_ = false;
    append({.kind = Kind::kDrop,
            .pass = Pass::kRecompute,
            .layer = layer,
            .chunk = chunk,
            .drops = {key(Buffer::kHidden, layer, chunk)}});
  }

  // This band's keys and values are whole again, and no later band will look at them any more.
  void drop_carried(const Band& band, int layer) {
    Operation drop{
        .kind = Kind::kDrop, .pass = Pass::kBackward, .layer = layer, .chunk = band.begin};
    for (int chunk = band.begin; chunk < band.end; ++chunk) {
      drop.drops.push_back(key(Buffer::kCarriedKeyValue, layer, chunk));
    }
    append(std::move(drop));
  }

  void post_backward(int layer, int chunk) {
    append({.kind = Kind::kPostBackward,
            .pass = Pass::kBackward,
            .layer = layer,
            .chunk = chunk,
            .reads = with_weights({key(Buffer::kPostGraph, layer, chunk),
                                   key(Buffer::kHiddenGradient, layer + 1, chunk)},
                                  layer_unit(layer)),
            .writes = with_gradients({key(Buffer::kOutputGradient, layer, chunk),
                                      key(Buffer::kResidualGradient, layer, chunk)},
                                     layer_unit(layer)),
            .drops = {key(Buffer::kPostGraph, layer, chunk),
                      key(Buffer::kHiddenGradient, layer + 1, chunk)}});
  }

  void pre_backward(int layer, int chunk) {
    append(
        {.kind = Kind::kPreBackward,
         .pass = Pass::kBackward,
         .layer = layer,
         .chunk = chunk,
         .reads = with_weights(
             {key(Buffer::kPreGraph, layer, chunk), key(Buffer::kQueryGradient, layer, chunk),
              key(Buffer::kKeyValueGradient, layer, chunk),
              key(Buffer::kResidualGradient, layer, chunk)},
             layer_unit(layer)),
         .writes = with_gradients({key(Buffer::kHiddenGradient, layer, chunk)}, layer_unit(layer)),
         .drops = {key(Buffer::kPreGraph, layer, chunk), key(Buffer::kQueryGradient, layer, chunk),
                   key(Buffer::kKeyValueGradient, layer, chunk),
                   key(Buffer::kResidualGradient, layer, chunk),
                   key(Buffer::kKeyValue, layer, chunk)}});
  }

  const ScheduleOptions& options_;
  const std::vector<MicroBatchPlan>& micro_batches_;
  int rank_;
  int micro_batch_ = 0;
  bool recomputing_layer_ = false;
  std::vector<Operation> operations_;
  std::map<BufferKey, int> last_writer_;
};

}  // namespace

StepSchedule build_step_schedule(const ScheduleOptions& options,
                                 const std::vector<MicroBatchPlan>& micro_batches, int rank) {
  LONGSPAN_CHECK(options.num_layers >= 1 && options.band_chunks >= 1 && options.shard_group >= 1,
                 "layers ", options.num_layers, ", band ", options.band_chunks, ", shard group ",
                 options.shard_group);
  LONGSPAN_CHECK(options.inner_mode != StoredMode::kContextOnly,
                 "the inner mode of context_only must be one of the other three");
  for (const MicroBatchPlan& micro_batch : micro_batches) {
    LONGSPAN_CHECK(micro_batch.layout->num_ranks() % options.shard_group == 0, "shard group ",
                   options.shard_group, " does not divide ", micro_batch.layout->num_ranks(),
                   " ranks");
    LONGSPAN_CHECK(static_cast<int>(micro_batch.chunks->size()) == micro_batch.layout->num_chunks(),
                   "plans for ", micro_batch.chunks->size(), " of ",
                   micro_batch.layout->num_chunks(), " chunks");
  }
  return ScheduleBuilder(options, micro_batches, rank).run();
}

}  // namespace longspan
