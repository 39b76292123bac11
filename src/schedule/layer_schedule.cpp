#include <algorithm>

#include "schedule/schedule_builder.h"

namespace longspan {
namespace {

// Two chunks in flight: while one chunk's rows travel, the other computes. `begin`, `compute`,
// `end` of a chunk run in that order; the next chunk begins before this one computes, and ends
// after the next has computed.
template <typename Begin, typename Compute, typename End>
void pipeline(int begin_chunk, int end_chunk, bool reverse, Begin begin, Compute compute, End end) {
  const int count = end_chunk - begin_chunk;
  const auto chunk = [&](int step) { return reverse ? end_chunk - 1 - step : begin_chunk + step; };
  for (int step = 0; step < count + 2; ++step) {
    if (step < count) begin(chunk(step));
    if (step >= 1 && step - 1 < count) compute(chunk(step - 1));
    if (step >= 2) end(chunk(step - 2));
  }
}

}  // namespace

void ScheduleBuilder::layer_forward(const Band& band, int layer, StoredMode mode, Pass pass) {
  const bool mixing = needs_mixing(layer, mode);
  const bool output = needs_output(layer, mode);
  const bool keep = mode == StoredMode::kKeep;
  gather_layer(layer, pass);
  if (layer + 1 < options_.num_layers) gather_layer(layer + 1, pass);
  pipeline(
      band.begin, band.end, /*reverse=*/false,
      [&](int chunk) {
        pre_segment(layer, chunk, keep, pass);
        if (mixing) begin_mixing(band, layer, chunk, pass);
      },
      [&](int chunk) {
        if (mixing) compute_mixing(band, layer, chunk, pass);
      },
      [&](int chunk) {
        if (mixing) end_mixing(layer, chunk, pass);
        if (output) finish_layer(layer, chunk, keep, pass);
      });
  for (int chunk = band.begin; chunk < band.end; ++chunk) {
    after_layer_forward(band, layer, chunk, mode, pass);
  }
  for (const int unit : layer_units(layer)) release(unit, pass);
}

// What of a layer survives its forward, by stored mode.
void ScheduleBuilder::after_layer_forward(const Band& band, int layer, int chunk, StoredMode mode,
                                          Pass pass) {
  Operation drop{.kind = Kind::kDrop, .pass = pass, .layer = layer, .chunk = chunk};
  if (mode == StoredMode::kKeep) {
    drop.drops = {key(Buffer::kHidden, layer, chunk)};  // the graphs hold what they need of it
    append(std::move(drop));
    return;
  }
  const bool attention_kept = mode == StoredMode::kLayerInputsAttention;
  if (!band.last && pass == Pass::kForward && !context_kept(layer)) {
    append({.kind = Kind::kCarryContext,
            .pass = pass,
            .layer = layer,
            .chunk = chunk,
            .index = band.end,
            .reads = {key(Buffer::kContext, layer, chunk)},
            .writes = {key(Buffer::kCarriedContext, layer, chunk)}});
  }
  drop.drops = {key(Buffer::kMixInputs, layer, chunk)};
  const auto drop_if = [&](bool condition, Buffer kind) {
    if (condition) drop.drops.push_back(key(kind, layer, chunk));
  };
  drop_if(core_attention(layer) || !attention_kept, Buffer::kContext);
  drop_if(mode == StoredMode::kContextOnly, Buffer::kHidden);
  drop_if(!needs_output(layer, mode), Buffer::kSideOutputs);
  drop_if(needs_mixing(layer, mode) && !attention_kept, Buffer::kMixOutput);
  drop_if(options_.evaluate && !core_attention(layer), Buffer::kMixChoices);
  drop_if(options_.evaluate && has_experts(layer), Buffer::kExpertChoices);
  append(std::move(drop));
}

void ScheduleBuilder::layer_backward(const Band& band, int layer, StoredMode mode) {
  gather_layer(layer, Pass::kBackward);
  for (const int unit : layer_units(layer)) open_gradients(unit);
  if (layer > 0) gather_layer(layer - 1, Pass::kBackward);
  if (mode != StoredMode::kKeep) recompute_layer(band, layer, mode);
  if (!band.last && !context_kept(layer)) drop_carried(band, layer);
  pipeline(
      band.begin, band.end, /*reverse=*/true,
      [&](int chunk) {
        if (mode != StoredMode::kKeep) recompute_post(layer, chunk);
        finish_layer_backward(layer, chunk);
        begin_mixing(band, layer, chunk, Pass::kBackward);
      },
      [&](int chunk) { compute_mixing(band, layer, chunk, Pass::kBackward); },
      [&](int chunk) {
        end_mixing(layer, chunk, Pass::kBackward);
        pre_backward(layer, chunk);
      });
  for (const int unit : layer_units(layer)) release(unit, Pass::kBackward);
  reduce_gradients(layer_units(layer));
}

// Pre again for all chunks of the band, and attention where its output was not kept.
void ScheduleBuilder::recompute_layer(const Band& band, int layer, StoredMode mode) {
  const bool mixing_again = mode == StoredMode::kLayerInputs;
  pipeline(
      band.begin, band.end, /*reverse=*/false,
      [&](int chunk) {
        pre_segment(layer, chunk, /*keep_graph=*/true, Pass::kRecompute);
        if (mixing_again) begin_mixing(band, layer, chunk, Pass::kRecompute);
      },
      [&](int chunk) {
        if (mixing_again) compute_mixing(band, layer, chunk, Pass::kRecompute);
      },
      [&](int chunk) {
        if (mixing_again) end_mixing(layer, chunk, Pass::kRecompute);
      });
}

void ScheduleBuilder::recompute_post(int layer, int chunk) {
  recomputing_layer_ = true;
  finish_layer(layer, chunk, /*keep_graph=*/true, Pass::kRecompute);
  recomputing_layer_ = false;
  append({.kind = Kind::kDrop,
          .pass = Pass::kRecompute,
          .layer = layer,
          .chunk = chunk,
          .drops = {key(Buffer::kHidden, layer, chunk)}});
}

// This band's context is whole again, and no later band will look at it any more.
void ScheduleBuilder::drop_carried(const Band& band, int layer) {
  Operation drop{.kind = Kind::kDrop, .pass = Pass::kBackward, .layer = layer, .chunk = band.begin};
  for (int chunk = band.begin; chunk < band.end; ++chunk) {
    drop.drops.push_back(key(Buffer::kCarriedContext, layer, chunk));
  }
  append(std::move(drop));
}

// ---- segments

void ScheduleBuilder::pre_segment(int layer, int chunk, bool keep_graph, Pass pass) {
  Operation operation{
      .kind = Kind::kPreSegment,
      .pass = pass,
      .layer = layer,
      .chunk = chunk,
      .keep_graph = keep_graph,
      .reads = with_weights({key(Buffer::kHidden, layer, chunk)}, layer_unit(layer)),
      .writes = {key(Buffer::kMixInputs, layer, chunk), key(Buffer::kSideOutputs, layer, chunk)}};
  if (core_attention(layer)) operation.writes.push_back(key(Buffer::kContext, layer, chunk));
  if (keep_graph) operation.writes.push_back(key(Buffer::kPreGraph, layer, chunk));
  append(std::move(operation));
}

void ScheduleBuilder::pre_backward(int layer, int chunk) {
  Operation operation{
      .kind = Kind::kPreBackward,
      .pass = Pass::kBackward,
      .layer = layer,
      .chunk = chunk,
      .reads = with_weights(
          {key(Buffer::kPreGraph, layer, chunk), key(Buffer::kMixInputGradients, layer, chunk),
           key(Buffer::kSideGradients, layer, chunk), key(Buffer::kResidualGradient, layer, chunk)},
          layer_unit(layer)),
      .writes = with_gradients({key(Buffer::kHiddenGradient, layer, chunk)}, layer_unit(layer)),
      .drops = {key(Buffer::kPreGraph, layer, chunk), key(Buffer::kMixInputGradients, layer, chunk),
                key(Buffer::kSideGradients, layer, chunk),
                key(Buffer::kResidualGradient, layer, chunk)}};
  if (core_attention(layer)) {  // keys and values are outputs of pre
    operation.reads.push_back(key(Buffer::kContextGradient, layer, chunk));
    operation.drops.push_back(key(Buffer::kContextGradient, layer, chunk));
    operation.drops.push_back(key(Buffer::kContext, layer, chunk));
  }
  append(std::move(operation));
}

void ScheduleBuilder::finish_layer(int layer, int chunk, bool keep_graph, Pass pass) {
  post_segment(layer, chunk, keep_graph, pass);
  if (!has_experts(layer)) return;
  experts(layer, chunk, pass);
  combine_segment(layer, chunk, keep_graph, pass);
}

void ScheduleBuilder::finish_layer_backward(int layer, int chunk) {
  if (has_experts(layer)) {
    combine_backward(layer, chunk);
    experts_backward(layer, chunk);
  }
  post_backward(layer, chunk);
}

void ScheduleBuilder::post_segment(int layer, int chunk, bool keep_graph, Pass pass) {
  Operation operation{.kind = Kind::kPostSegment,
                      .pass = pass,
                      .layer = layer,
                      .chunk = chunk,
                      .keep_graph = keep_graph,
                      .reads = with_weights({key(Buffer::kHidden, layer, chunk),
                                             key(Buffer::kMixOutput, layer, chunk),
                                             key(Buffer::kSideOutputs, layer, chunk)},
                                            layer_unit(layer)),
                      .writes = {},
                      .drops = {key(Buffer::kSideOutputs, layer, chunk)}};
  if (has_experts(layer)) {
    operation.writes = {key(Buffer::kExpertInputs, layer, chunk),
                        key(Buffer::kPostOutputs, layer, chunk)};
    const BufferKey choices = key(Buffer::kExpertChoices, layer, chunk);
    (alive(choices) ? operation.reads : operation.writes).push_back(choices);
  } else if (!recomputing_layer_) {
    // The output of a layer's recompute is known already: the next layer's backward has run.
    operation.writes.push_back(key(Buffer::kHidden, layer + 1, chunk));
  }
  if (keep_graph) operation.writes.push_back(key(Buffer::kPostGraph, layer, chunk));
  append(std::move(operation));
}

void ScheduleBuilder::post_backward(int layer, int chunk) {
  std::vector<BufferKey> used = {key(Buffer::kPostGraph, layer, chunk)};
  if (has_experts(layer)) {
    used.push_back(key(Buffer::kPostOutputGradients, layer, chunk));
    used.push_back(key(Buffer::kExpertInputGradients, layer, chunk));
  } else {
    used.push_back(key(Buffer::kHiddenGradient, layer + 1, chunk));
  }
  append({.kind = Kind::kPostBackward,
          .pass = Pass::kBackward,
          .layer = layer,
          .chunk = chunk,
          .reads = with_weights(used, layer_unit(layer)),
          .writes = with_gradients({key(Buffer::kOutputGradient, layer, chunk),
                                    key(Buffer::kSideGradients, layer, chunk),
                                    key(Buffer::kResidualGradient, layer, chunk)},
                                   layer_unit(layer)),
          .drops = used});
}

// ---- experts

void ScheduleBuilder::experts(int layer, int chunk, Pass pass) {
  append({.kind = Kind::kExperts,
          .pass = pass,
          .layer = layer,
          .chunk = chunk,
          .reads = {key(Buffer::kExpertInputs, layer, chunk),
                    key(Buffer::kExpertChoices, layer, chunk),
                    unit_key(Buffer::kWeights, unit_of_experts(layer))},
          .writes = {key(Buffer::kExpertOutput, layer, chunk)}});
}

void ScheduleBuilder::experts_backward(int layer, int chunk) {
  const std::vector<BufferKey> used = {key(Buffer::kExpertInputs, layer, chunk),
                                       key(Buffer::kExpertChoices, layer, chunk),
                                       key(Buffer::kExpertOutputGradient, layer, chunk)};
  append({.kind = Kind::kExperts,
          .pass = Pass::kBackward,
          .layer = layer,
          .chunk = chunk,
          .reads = with_weights(used, unit_of_experts(layer)),
          .writes = with_gradients({key(Buffer::kExpertInputGradients, layer, chunk)},
                                   unit_of_experts(layer)),
          .drops = used});
}

void ScheduleBuilder::combine_segment(int layer, int chunk, bool keep_graph, Pass pass) {
  const std::vector<BufferKey> used = {key(Buffer::kPostOutputs, layer, chunk),
                                       key(Buffer::kExpertOutput, layer, chunk),
                                       key(Buffer::kExpertInputs, layer, chunk)};
  Operation operation{.kind = Kind::kCombineSegment,
                      .pass = pass,
                      .layer = layer,
                      .chunk = chunk,
                      .keep_graph = keep_graph,
                      .reads = with_weights(used, layer_unit(layer)),
                      .writes = {},
                      .drops = used};
  if (!recomputing_layer_) operation.writes.push_back(key(Buffer::kHidden, layer + 1, chunk));
  if (keep_graph) {
    operation.writes.push_back(key(Buffer::kCombineGraph, layer, chunk));
    operation.drops.pop_back();  // backward sends the tokens to the experts again
  }
  append(std::move(operation));
}

void ScheduleBuilder::combine_backward(int layer, int chunk) {
  const std::vector<BufferKey> used = {key(Buffer::kCombineGraph, layer, chunk),
                                       key(Buffer::kHiddenGradient, layer + 1, chunk)};
  append({.kind = Kind::kCombineBackward,
          .pass = Pass::kBackward,
          .layer = layer,
          .chunk = chunk,
          .reads = with_weights(used, layer_unit(layer)),
          .writes = with_gradients({key(Buffer::kExpertOutputGradient, layer, chunk),
                                    key(Buffer::kPostOutputGradients, layer, chunk)},
                                   layer_unit(layer)),
          .drops = used});
}

}  // namespace longspan
