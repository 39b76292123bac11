#include "base/check.h"
#include "schedule/schedule_builder.h"

namespace longspan {

void ScheduleBuilder::begin_mixing(const Band& band, int layer, int chunk, Pass pass) {
  if (core_attention(layer)) begin_attention(band, layer, chunk, pass);
}

void ScheduleBuilder::compute_mixing(const Band& band, int layer, int chunk, Pass pass) {
  if (core_attention(layer)) return compute_attention(layer, chunk, pass);
  if (pass == Pass::kBackward) return mix_backward(band, layer, chunk);
  mix(band, layer, chunk, pass);
}

void ScheduleBuilder::end_mixing(int layer, int chunk, Pass pass) {
  if (!core_attention(layer)) return;
  if (pass == Pass::kBackward) return end_backward_attention(layer, chunk);
  end_forward_attention(layer, chunk, pass);
}

bool ScheduleBuilder::needs_output(int layer, StoredMode mode) const {
  return options_.evaluate || mode != StoredMode::kContextOnly || layer + 1 < options_.num_layers;
}

// The context of a mix comes out of its forward, not out of pre: where that is not to run again, it
// stays.
bool ScheduleBuilder::context_kept(int layer) const {
  if (options_.evaluate) return false;
  return options_.stored_mode == StoredMode::kKeep ||
         (options_.stored_mode == StoredMode::kLayerInputsAttention && !core_attention(layer));
}

// Where the context of `chunk` stands while `band` is at work on a layer.
BufferKey ScheduleBuilder::context_source(const Band& band, int layer, int chunk) const {
  const bool own_band = chunk >= band.begin;
  return key(own_band || context_kept(layer) ? Buffer::kContext : Buffer::kCarriedContext, layer,
             chunk);
}

// What the backward of a chunk adds to: its own context and all earlier ones.
std::vector<BufferKey> ScheduleBuilder::context_gradients(int layer, int chunk) const {
  std::vector<BufferKey> keys;
  for (int seen = 0; seen <= chunk; ++seen)
    keys.push_back(key(Buffer::kContextGradient, layer, seen));
  return keys;
}

// ---- a mix

void ScheduleBuilder::mix(const Band& band, int layer, int chunk, Pass pass) {
  Operation operation{
      .kind = Kind::kMix,
      .pass = pass,
      .layer = layer,
      .chunk = chunk,
      .reads = with_weights({key(Buffer::kMixInputs, layer, chunk)}, layer_unit(layer)),
      .writes = {key(Buffer::kContext, layer, chunk), key(Buffer::kMixOutput, layer, chunk)}};
  for (int seen = 0; seen < chunk; ++seen) {
    operation.reads.push_back(context_source(band, layer, seen));
  }
  const BufferKey choices = key(Buffer::kMixChoices, layer, chunk);
  (alive(choices) ? operation.reads : operation.writes).push_back(choices);
  append(std::move(operation));
}

void ScheduleBuilder::mix_backward(const Band& band, int layer, int chunk) {
  Operation operation{
      .kind = Kind::kMix,
      .pass = Pass::kBackward,
      .layer = layer,
      .chunk = chunk,
      .reads = with_weights(
          {key(Buffer::kMixInputs, layer, chunk), key(Buffer::kMixOutput, layer, chunk),
           key(Buffer::kMixChoices, layer, chunk), key(Buffer::kOutputGradient, layer, chunk)},
          layer_unit(layer)),
      .writes = with_gradients({key(Buffer::kMixInputGradients, layer, chunk)}, layer_unit(layer)),
      .drops = {key(Buffer::kMixInputs, layer, chunk), key(Buffer::kMixOutput, layer, chunk),
                key(Buffer::kMixChoices, layer, chunk), key(Buffer::kOutputGradient, layer, chunk),
                key(Buffer::kContext, layer, chunk), key(Buffer::kContextGradient, layer, chunk)}};
  for (int seen = 0; seen <= chunk; ++seen) {
    operation.reads.push_back(context_source(band, layer, seen));
  }
  for (const BufferKey& gradient : context_gradients(layer, chunk)) {
    operation.writes.push_back(gradient);
  }
  append(std::move(operation));
}

// ---- core attention

const AttentionPlan& ScheduleBuilder::plan(int chunk, Pass pass) const {
  const ChunkPlans& plans = (*micro_batches_[micro_index()].chunks)[static_cast<size_t>(chunk)];
  return pass == Pass::kBackward ? plans.backward : plans.forward;
}

void ScheduleBuilder::attention(Kind kind, int layer, int chunk, Pass pass, int index) {
  append({.kind = kind,
          .pass = pass,
          .layer = layer,
          .chunk = chunk,
          .index = index,
          .reads = {key(Buffer::kAttentionPass, layer, chunk)},
          .writes = {key(Buffer::kAttentionPass, layer, chunk)}});
}

void ScheduleBuilder::begin_attention(const Band& band, int layer, int chunk, Pass pass) {
  Operation begin{.kind = Kind::kAttentionBegin,
                  .pass = pass,
                  .layer = layer,
                  .chunk = chunk,
                  .reads = {key(Buffer::kMixInputs, layer, chunk)},
                  .writes = {key(Buffer::kAttentionPass, layer, chunk)}};
  for (int seen = 0; seen <= chunk; ++seen)
    begin.reads.push_back(context_source(band, layer, seen));
  if (pass == Pass::kBackward) {
    begin.reads.push_back(key(Buffer::kMixOutput, layer, chunk));
    begin.reads.push_back(key(Buffer::kOutputGradient, layer, chunk));
    for (const BufferKey& gradient : context_gradients(layer, chunk))
      begin.writes.push_back(gradient);
  }
  append(std::move(begin));
  if (!plan(chunk, pass).out.empty()) attention(Kind::kAttentionOutStart, layer, chunk, pass, 0);
}

// The rounds of the out leg, each launch group as soon as its rounds are there, and the first
// step home.
void ScheduleBuilder::compute_attention(int layer, int chunk, Pass pass) {
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

void ScheduleBuilder::finish_back_leg(int layer, int chunk, Pass pass) {
  const int rounds = static_cast<int>(plan(chunk, pass).back.size());
  for (int round = 0; round < rounds; ++round) {
    if (round > 0) attention(Kind::kAttentionBackStart, layer, chunk, pass, round);
    attention(Kind::kAttentionBackFinish, layer, chunk, pass, round);
  }
}

void ScheduleBuilder::end_forward_attention(int layer, int chunk, Pass pass) {
  finish_back_leg(layer, chunk, pass);
  append({.kind = Kind::kAttentionEnd,
          .pass = pass,
          .layer = layer,
          .chunk = chunk,
          .reads = {key(Buffer::kAttentionPass, layer, chunk)},
          .writes = {key(Buffer::kMixOutput, layer, chunk)},
          .drops = {key(Buffer::kAttentionPass, layer, chunk)}});
}

void ScheduleBuilder::end_backward_attention(int layer, int chunk) {
  finish_back_leg(layer, chunk, Pass::kBackward);
  Operation end{
      .kind = Kind::kAttentionEnd,
      .pass = Pass::kBackward,
      .layer = layer,
      .chunk = chunk,
      .reads = {key(Buffer::kAttentionPass, layer, chunk)},
      .writes = {key(Buffer::kMixInputGradients, layer, chunk)},
      .drops = {key(Buffer::kAttentionPass, layer, chunk), key(Buffer::kMixInputs, layer, chunk),
                key(Buffer::kMixOutput, layer, chunk), key(Buffer::kOutputGradient, layer, chunk)}};
  for (const BufferKey& gradient : context_gradients(layer, chunk)) end.writes.push_back(gradient);
  append(std::move(end));
}

}  // namespace longspan
