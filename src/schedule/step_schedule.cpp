#include "schedule/step_schedule.h"

#include <algorithm>

#include "base/check.h"
#include "schedule/schedule_builder.h"

namespace longspan {

StepSchedule ScheduleBuilder::run() {
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

void ScheduleBuilder::train_micro_batch() {
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

void ScheduleBuilder::evaluate_micro_batch() {
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
void ScheduleBuilder::drop_context() {
  Operation drop{.kind = Kind::kDrop};
  for (int layer = 0; layer < options_.num_layers; ++layer) {
    for (int chunk = 0; chunk < band(num_bands() - 1).begin; ++chunk) {
      drop.drops.push_back(key(Buffer::kCarriedContext, layer, chunk));
    }
  }
  append(std::move(drop));
}

void ScheduleBuilder::band_forward(const Band& band, StoredMode mode, Pass pass) {
  gather(kEmbeddingUnit, pass);
  gather_layer(0, pass);
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

void ScheduleBuilder::gather_head(Pass pass) {
  gather(final_unit(options_.num_layers), pass);
  if (options_.tied_embeddings) gather(kEmbeddingUnit, pass);
}
void ScheduleBuilder::release_head(Pass pass) {
  release(final_unit(options_.num_layers), pass);
  if (options_.tied_embeddings) release(kEmbeddingUnit, pass);
}
std::vector<BufferKey> ScheduleBuilder::head_reads(int chunk) const {
  auto reads = with_weights({key(Buffer::kHidden, options_.num_layers, chunk)},
                            final_unit(options_.num_layers));
  return options_.tied_embeddings ? with_weights(std::move(reads), kEmbeddingUnit) : reads;
}

void ScheduleBuilder::band_backward(const Band& band, StoredMode mode) {
  const int last = options_.num_layers;
  gather_head(Pass::kBackward);
  gather_layer(last - 1, Pass::kBackward);
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
  reduce_gradients({final_unit(last)});
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
  reduce_gradients({kEmbeddingUnit});
  close_gradients();
}

// ---- weights and gradients

// A shard group in which no rank has a token of this micro-batch needs no weights for it.
bool ScheduleBuilder::group_has_tokens() const {
  const int first = rank_ / options_.shard_group * options_.shard_group;
  for (int rank = first; rank < first + options_.shard_group; ++rank) {
    for (int chunk = 0; chunk < layout().num_chunks(); ++chunk) {
      if (!layout().piece(chunk, rank).empty()) return true;
    }
  }
  return false;
}

int ScheduleBuilder::unit_of_experts(int layer) const {
  int earlier = 0;
  for (int before = 0; before < layer; ++before) earlier += has_experts(before) ? 1 : 0;
  return expert_unit(options_.num_layers, earlier, options_.expert_group,
                     rank_ % options_.expert_group);
}

std::vector<int> ScheduleBuilder::layer_units(int layer) const {
  if (!has_experts(layer)) return {layer_unit(layer)};
  return {layer_unit(layer), unit_of_experts(layer)};
}

// A group without tokens leaves its units alone; experts see the tokens of other groups, too.
bool ScheduleBuilder::uses_unit(int unit) const {
  return unit > final_unit(options_.num_layers) || group_has_tokens();
}

void ScheduleBuilder::gather(int unit, Pass pass) {
  const BufferKey weights = unit_key(Buffer::kWeights, unit);
  if (!uses_unit(unit) || alive(weights)) return;
  append({.kind = Kind::kGatherWeights, .pass = pass, .layer = unit, .writes = {weights}});
}

void ScheduleBuilder::gather_layer(int layer, Pass pass) {
  for (const int unit : layer_units(layer)) gather(unit, pass);
}

void ScheduleBuilder::release(int unit, Pass pass) {
  if (!uses_unit(unit)) return;
  append({.kind = Kind::kReleaseWeights,
          .pass = pass,
          .layer = unit,
          .reads = {unit_key(Buffer::kWeights, unit)},
          .drops = {unit_key(Buffer::kWeights, unit)}});
}

void ScheduleBuilder::open_gradients(int unit) {
  if (!uses_unit(unit)) return;
  append({.kind = Kind::kOpenGradients,
          .pass = Pass::kBackward,
          .layer = unit,
          .writes = {unit_key(Buffer::kGradients, unit)}});
}

void ScheduleBuilder::reduce_gradients(const std::vector<int>& units) {
  close_gradients();
  for (const int unit : units) {
    if (!uses_unit(unit)) continue;
    append({.kind = Kind::kReduceGradients,
            .pass = Pass::kBackward,
            .layer = unit,
            .reads = {unit_key(Buffer::kGradients, unit)},
            .writes = {unit_key(Buffer::kGradients, unit)}});
    reducing_.push_back(unit);
  }
}

void ScheduleBuilder::close_gradients() {
  for (const int unit : reducing_) {
    append({.kind = Kind::kCloseGradients,
            .pass = Pass::kBackward,
            .layer = unit,
            .reads = {unit_key(Buffer::kGradients, unit)},
            .drops = {unit_key(Buffer::kGradients, unit)}});
  }
  reducing_.clear();
}

std::vector<BufferKey> ScheduleBuilder::with_weights(std::vector<BufferKey> reads, int unit) const {
  if (uses_unit(unit)) reads.push_back(unit_key(Buffer::kWeights, unit));
  return reads;
}

std::vector<BufferKey> ScheduleBuilder::with_gradients(std::vector<BufferKey> writes,
                                                       int unit) const {
  if (uses_unit(unit)) writes.push_back(unit_key(Buffer::kGradients, unit));
  return writes;
}

// ---- bookkeeping

ScheduleBuilder::Band ScheduleBuilder::band(int band_idx) const {
  const int begin = band_idx * options_.band_chunks;
  return {begin, std::min(begin + options_.band_chunks, layout().num_chunks()),
          band_idx + 1 == num_bands()};
}
void ScheduleBuilder::append(Operation operation) {
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

StepSchedule build_step_schedule(const ScheduleOptions& options,
                                 const std::vector<MicroBatchPlan>& micro_batches, int rank) {
  LONGSPAN_CHECK(options.num_layers >= 1 && options.band_chunks >= 1 && options.shard_group >= 1,
                 "layers ", options.num_layers, ", band ", options.band_chunks, ", shard group ",
                 options.shard_group);
  LONGSPAN_CHECK(options.layers.empty() || std::ssize(options.layers) == options.num_layers,
                 options.layers.size(), " layer kinds for ", options.num_layers, " layers");
  LONGSPAN_CHECK(options.inner_mode != StoredMode::kContextOnly,
                 "the inner mode of context_only must be one of the other three");
  for (const MicroBatchPlan& micro_batch : micro_batches) {
    LONGSPAN_CHECK(micro_batch.layout->num_ranks() % options.shard_group == 0, "shard group ",
                   options.shard_group, " does not divide ", micro_batch.layout->num_ranks(),
                   " ranks");
    LONGSPAN_CHECK(micro_batch.layout->num_ranks() % options.expert_group == 0, "expert group ",
                   options.expert_group, " does not divide ", micro_batch.layout->num_ranks(),
                   " ranks");
    LONGSPAN_CHECK(static_cast<int>(micro_batch.chunks->size()) == micro_batch.layout->num_chunks(),
                   "plans for ", micro_batch.chunks->size(), " of ",
                   micro_batch.layout->num_chunks(), " chunks");
  }
  return ScheduleBuilder(options, micro_batches, rank).run();
}

}  // namespace longspan
