// The step schedule: every operation of one training step on one rank, in order.
//
// Why: what is kept, dropped, recomputed, sent and gathered, and when, is decided once, here, as
// data. The executor (train/executor.h) interprets the list, the simulator can play it against a
// cost model, a memory plan can read buffer lives from it, and schedule_verifier.h proves before
// use that no rank waits for ever and no buffer is read before it is written or after it is
// dropped.
//
//   StepSchedule schedule = build_step_schedule(options, micro_batches, rank);
//   for (const Operation& op : schedule.operations) executor.run(op);
//
// A micro-batch is cut into chunks (layout/token_layout.h). A *band* of consecutive chunks goes
// through a layer together, then through the next layer. Bands run forward in causal order, then
// backward in reverse. The *stored mode* says what a band keeps between its forward and its
// backward:
//
//   keep                    the segments' graphs with all activations; nothing is computed again
//   layer_inputs_attention  each layer's input, attention output and LSE; pre and post run again
//   layer_inputs            each layer's input; pre, attention (its exchange included) and post
//                           run again
//   context_only            what later bands see of each layer; the band's whole forward runs again
//                           in the inner mode (one of the three above). The last band's first
//                           forward already runs in the inner mode.
//
// A layer's *context* is what its later tokens look back at: keys and values, latents and pooled
// keys, or a state. With more than one band, the context of documents that continue into a later
// band is carried in every mode, and its gradient comes back before the earlier band's backward of
// that layer. What was *chosen* in a first forward (selected keys, experts) is kept in every mode
// and repeated by a recompute.
//
// Between pre and post stands core attention, with its plan, or a *mix* (mix/sequence_mix.h), which
// exchanges what it needs by itself: one collective operation. A layer with experts has a third
// segment: post ends at the router, the experts' exchange follows, and combine ends the layer.
//
// Weights are gathered one layer ahead, and gradients reduced while the layer below computes: an
// executor with a second queue hides both behind the work of a layer, at the price of the weights
// and open gradients of two layers at once.
//
// Ranks without tokens walk the same list with zero tokens. Values; immutable once built.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "layout/token_layout.h"
#include "planner/attention_plan.h"

namespace longspan {

enum class StoredMode { kKeep, kLayerInputsAttention, kLayerInputs, kContextOnly };
std::string_view stored_mode_name(StoredMode mode);
// UserError that lists the names if `name` is none of them.
StoredMode stored_mode_from_name(std::string_view name);

// What a parameter unit is: gathered, released and reduced as one. Layers come at kFirstLayerUnit +
// layer.
inline constexpr int kEmbeddingUnit = 0;
inline constexpr int kFirstLayerUnit = 1;
inline int layer_unit(int layer) {
  return kFirstLayerUnit + layer;
}
inline int final_unit(int num_layers) {
  return kFirstLayerUnit + num_layers;
}
// Experts come after it: for each layer with experts one unit for each block of the expert group.
inline int expert_unit(int num_layers, int earlier_expert_layers, int expert_group, int block) {
  return final_unit(num_layers) + 1 + earlier_expert_layers * expert_group + block;
}

enum class OperationKind {
  kGatherWeights,        // collective in the shard group: unit
  kReleaseWeights,       // unit
  kOpenGradients,        // unit
  kReduceGradients,      // collective in the shard group: unit; travels until kCloseGradients
  kCloseGradients,       // unit
  kEmbed,                // tokens of a chunk -> hidden(0)
  kPreSegment,           // hidden -> mix inputs; core attention: its context, too
  kAttentionBegin,       // hand the pass its inputs
  kAttentionOutStart,    // post sends and receives of out round `index`
  kAttentionOutFinish,   // wait for them
  kAttentionLaunch,      // run launch group `index` on this server
  kAttentionBackStart,   // post sends and receives of back round `index`
  kAttentionBackFinish,  // wait for them and merge
  kAttentionEnd,         // results at home
  kMix,                  // collective over all ranks: mix inputs -> mix output, context
  kPostSegment,          // mix output, hidden -> hidden of the next layer, or expert inputs
  kExperts,              // collective in the expert group: expert inputs -> expert output
  kCombineSegment,       // post outputs, expert output -> hidden of the next layer
  kCarryContext,         // keep the context that later bands see
  kHeadLoss,             // hidden(last) -> loss and hidden gradient (training)
  kHeadEval,             // hidden(last) -> token losses
  kCombineBackward,
  kPostBackward,
  kPreBackward,
  kEmbedBackward,
  kDrop,           // nothing but its `drops`
  kOptimizerStep,  // collective over all ranks
};
std::string_view operation_kind_name(OperationKind kind);

// kForward: the first forward. kRecompute: a forward repeated for the sake of backward, with the
// same plans.
enum class Pass { kForward, kRecompute, kBackward };
std::string_view pass_name(Pass pass);

enum class BufferKind {
  kWeights,               // gathered unit (layer field = unit)
  kGradients,             // open accumulator of a unit (layer field = unit)
  kHidden,                // input of a layer; index num_layers is the last layer's output
  kMixInputs,             // core attention: queries
  kContext,               // core attention: keys and values
  kCarriedContext,        // the part of kContext that later bands see
  kMixChoices,            // what the first forward selected
  kSideOutputs,           // what post needs of pre besides what the mix makes of it
  kAttentionPass,         // a pass in flight: received rows, partial results
  kMixOutput,             // core attention: O and LSE
  kExpertInputs,          // tokens and the weights of their experts
  kExpertChoices,         // which experts the first forward chose
  kPostOutputs,           // what combine needs of post besides them
  kExpertOutput,          //
  kPreGraph,              // segment kept for its backward
  kPostGraph,             //
  kCombineGraph,          //
  kHiddenGradient,        // gradient of kHidden
  kResidualGradient,      // part of it that post's backward gives
  kOutputGradient,        // of kMixOutput
  kMixInputGradients,     //
  kSideGradients,         //
  kContextGradient,       // adds up over the chunks that look back
  kExpertInputGradients,  // as the experts' exchange gives it
  kExpertOutputGradient,  //
  kPostOutputGradients,   // of expert inputs and post outputs, as combine gives them
};
std::string_view buffer_kind_name(BufferKind kind);

struct BufferKey {
  BufferKind kind = BufferKind::kHidden;
  int micro_batch = 0;
  int layer = 0;
  int chunk = 0;
  auto operator<=>(const BufferKey&) const = default;
};
std::string describe(const BufferKey& key);

struct Operation {
  OperationKind kind = OperationKind::kDrop;
  Pass pass = Pass::kForward;
  int micro_batch = 0;
  int layer = 0;  // the unit, for weight and gradient operations
  int chunk = 0;
  int index = 0;  // round or launch group; kCarryContext: the first chunk of the next band
  bool keep_graph = false;  // segments: keep what backward needs
  std::vector<BufferKey> reads;
  std::vector<BufferKey> writes;  // created, or updated where alive already
  std::vector<BufferKey> drops;   // freed after the operation
  // Indices of earlier operations of this rank that wrote what this one reads or updates: the
  // events a multi-stream executor waits for.
  std::vector<int> waits_for;
};
std::string describe(const Operation& operation);

struct StepSchedule {
  int rank = 0;
  std::vector<Operation> operations;
};

// One micro-batch of the step. The pointed-to values must outlive the building of the schedule
// only.
struct MicroBatchPlan {
  const TokenLayout* layout = nullptr;
  const std::vector<ChunkPlans>* chunks = nullptr;
};

struct ScheduledLayer {
  bool core_attention = true;  // false: a mix
  bool experts = false;
};

struct ScheduleOptions {
  int num_layers = 1;
  std::vector<ScheduledLayer> layers;  // one a layer; none: all as ScheduledLayer() says
  int band_chunks = 1;                 // chunks in a band; the last band may be shorter
  StoredMode stored_mode = StoredMode::kKeep;
  StoredMode inner_mode = StoredMode::kKeep;  // for kContextOnly
  int shard_group = 1;                        // ranks [k * shard_group, (k + 1) * shard_group)
  int expert_group = 1;          // ranks [k * expert_group, ...) share a layer's experts
  bool tied_embeddings = false;  // the head uses the embedding unit's weight
  bool evaluate = false;         // forward and token losses only, nothing kept

  ScheduledLayer layer(int layer) const {
    return layers.empty() ? ScheduledLayer{} : layers.at(static_cast<size_t>(layer));
  }
};

// InternalError on contradictory options (a band of no chunks, a context-only inner mode, a group
// size that does not divide).
StepSchedule build_step_schedule(const ScheduleOptions& options,
                                 const std::vector<MicroBatchPlan>& micro_batches, int rank);

}  // namespace longspan
