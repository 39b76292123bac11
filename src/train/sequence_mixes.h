// The mixes of a model's layers: which class runs a layer that has no core attention, and with
// which parameters.
//
//   const SequenceMixes mixes(model);
//   const SequenceMix* mix = mixes.of_layer(3);     // null: core attention
//
// Immutable; a rank makes its own.
#pragma once

#include <memory>
#include <vector>

#include "kernels/linear_attention_shape.h"
#include "kernels/sparse_attention_shape.h"
#include "mix/sequence_mix.h"
#include "schedule/step_schedule.h"
#include "spec/model_spec.h"

namespace longspan {

class TransformerModel;

// What a step schedule needs to know of the model's layers.
std::vector<ScheduledLayer> scheduled_layers(const ModelSpec& spec);

// What the mixes' kernels need to know of the model's layers of their kind.
LinearAttentionShape linear_attention_shape(const ModelSpec& spec);
IndexShape index_shape(const ModelSpec& spec);
SparseAttentionShape sparse_attention_shape(const ModelSpec& spec);

class SequenceMixes {
 public:
  explicit SequenceMixes(const TransformerModel& model);

  const SequenceMix* of_layer(int layer) const {
    return by_layer_.at(static_cast<size_t>(layer)).get();
  }

 private:
  // Null for core attention.
  static std::shared_ptr<const SequenceMix> make_mix(MixKind kind, const TransformerModel& model);

  std::vector<std::shared_ptr<const SequenceMix>> by_layer_;
};

}  // namespace longspan
