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
//   layer_inputs            each layer's input; pre, attention (its exchange included) and post run
//   again context_only            keys and values that later bands see; the band's whole forward
//   runs again in
//                           the inner mode (one of the three above). The last band's first forward
//                           already runs in the inner mode.
//
// With more than one band, keys and values of documents that continue into a later band are carried
// in every mode, and their gradients come back before the earlier band's backward of that layer.
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

enum class OperationKind {
  kGatherWeights,        // collective in the shard group: unit
  kReleaseWeights,       // unit
  kOpenGradients,        // unit
  kReduceGradients,      // collective in the shard group: unit
  kEmbed,                // tokens of a chunk -> hidden(0)
  kPreSegment,           // hidden -> query, key/value
  kAttentionBegin,       // hand the pass its inputs
  kAttentionOutStart,    // post sends and receives of out round `index`
  kAttentionOutFinish,   // wait for them
  kAttentionLaunch,      // run launch group `index` on this server
  kAttentionBackStart,   // post sends and receives of back round `index`
  kAttentionBackFinish,  // wait for them and merge
  kAttentionEnd,         // results at home
  kPostSegment,          // attention output, hidden -> hidden of the next layer
  kCarryContext,         // keep the keys and values that later bands see
  kHeadLoss,             // hidden(last) -> loss and hidden gradient (training)
  kHeadEval,             // hidden(last) -> token losses
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
  kWeights,           // gathered unit (layer field = unit)
  kGradients,         // open accumulator of a unit (layer field = unit)
  kHidden,            // input of a layer; index num_layers is the last layer's output
  kQuery,             //
  kKeyValue,          //
  kCarriedKeyValue,   // rows of kKeyValue that later bands see
  kAttentionPass,     // a pass in flight: received rows, partial results
  kAttentionOutput,   // O and LSE
  kPreGraph,          // segment kept for its backward
  kPostGraph,         //
  kHiddenGradient,    // gradient of kHidden
  kResidualGradient,  // part of it that post's backward gives
  kOutputGradient,    // dO
  kQueryGradient,     //
  kKeyValueGradient,  // adds up over the chunks that look back
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

struct ScheduleOptions {
  int num_layers = 1;
  int band_chunks = 1;  // chunks in a band; the last band may be shorter
  StoredMode stored_mode = StoredMode::kKeep;
  StoredMode inner_mode = StoredMode::kKeep;  // for kContextOnly
  int shard_group = 1;                        // ranks [k * shard_group, (k + 1) * shard_group)
  bool tied_embeddings = false;               // the head uses the embedding unit's weight
  bool evaluate = false;                      // forward and token losses only, nothing kept
};

// InternalError on contradictory options (a band of no chunks, a context-only inner mode, a group
// size that does not divide).
StepSchedule build_step_schedule(const ScheduleOptions& options,
                                 const std::vector<MicroBatchPlan>& micro_batches, int rank);

}  // namespace longspan
