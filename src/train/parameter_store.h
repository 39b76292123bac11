// The weights, gradients and optimizer state of one rank: what it holds, and how it travels.
//
// Weights are sharded over a shard group and optimizer state over all ranks
// (layout/parameter_layout.h). The executor gathers a unit's weights before their use and releases
// them after it; the full gradient of a unit lives from open_gradients to reduce_gradients, then
// adds up, over bands and micro-batches, in this rank's shard. One step reduces across groups,
// clips by the global norm, updates the owned slice and refreshes the shards.
//
//   ParameterStore store(table.parameters(), comm, {.shard_group = 2});  // a ParameterTable
//   store.gather(unit, op);      // ... store.weight(id) ...
//   store.open_gradients(unit);  // ... store.gradient(id).add_(...) ...
//   store.reduce_gradients(unit, op);
//   store.close_gradients(unit);
//   store.release(unit);
//   const double norm = store.step(adamw, lr, clip, op);
//
// With a shard group of 1 nothing is copied: weights and open gradients are views of the shard. A
// tied weight is one parameter of one unit: gather and open that unit for both uses. Same layout,
// same inputs: same bits. Another layout: equal up to rounding.
//
// gather and reduce_gradients may run on another queue of the rank's thread
// (device/beside_queue.h): whoever reads the weights, releases them or closes the gradients waits
// for that first.
//
// Contract: one store per rank, used from that rank's thread. Functions that take `op` communicate:
// gather and reduce_gradients are called by all ranks of the shard group in the same order (a group
// without tokens may skip them together), the others by all ranks of the communicator. The state is
// float32, or float64 in float64 runs; with bfloat16 products the weights given out are bfloat16,
// rounded once per step from the float32 master, but for those that are not to be rounded
// (Parameter::keep_float32). Tensors given out are views; they die with the next release, reduce or
// step of their unit.
//
// On a GPU everything lies there. Spans given out (shard, owned, gather_master) are host memory
// always: on a GPU copies, which commit_host_copies writes back.
#pragma once

#include <c10/core/Device.h>

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/range.h"
#include "base/real_span.h"
#include "comm/communicator.h"
#include "layers/parameter_access.h"
#include "layout/parameter_layout.h"
#include "optim/adamw.h"
#include "spec/parameter_table.h"

namespace longspan {

struct ParameterStoreOptions {
  int64_t shard_group = 1;   // divides the number of ranks
  int64_t expert_group = 1;  // over which the experts of a layer are spread; divides it, too
  bool float64 = false;
  bool bfloat16 = false;  // of the weights that products read; the master copy stays float32
  at::Device device = at::kCPU;
};

struct NamedBytes {
  std::string name;
  int64_t bytes = 0;
};

// What this rank alone owns of a unit: elements [flat) of its flat array.
struct OwnedState {
  Range flat;
  RealSpan weights;  // the master copy
  RealSpan first_moment;
  RealSpan second_moment;
};

class ParameterStore final : public WeightSource, public GradientSink {
 public:
  // Weights and state start at zero. All ranks call it.
  ParameterStore(std::vector<Parameter> parameters, Communicator& comm,
                 const ParameterStoreOptions& options);
  ~ParameterStore() override;

  const ParameterLayout& layout() const;
  const std::vector<Parameter>& parameters() const;
  // UserError if there is no parameter of that name.
  ParameterId find(std::string_view name) const;
  bool float64() const;
  int64_t rank() const;

  // Weights of a unit: gathered once, released once, in between weight() works.
  void gather(int64_t unit, std::string_view op);
  void release(int64_t unit);
  bool gathered(int64_t unit) const;
  const at::Tensor& weight(ParameterId id) const override;
  // The whole flat master array of a unit, padding included; valid until the next call. Called by
  // all ranks; those that do not hold the unit get it, too.
  RealSpan gather_master(int64_t unit, std::string_view op);

  // Gradients of a unit: opened at zero, added to by layers, reduced into the shards.
  void open_gradients(int64_t unit);
  at::Tensor& gradient(ParameterId id) override;
  void reduce_gradients(int64_t unit, std::string_view op);
  // After every reduction: its memory is free again.
  void close_gradients(int64_t unit);

  // Ends the gradient of the step: sums it across groups and returns its global norm. step() calls
  // it; call it earlier to look at the norm or at gradient_tensor(). Idempotent until the step.
  double finish_gradients(std::string_view op);
  // The update. Gradients must already be divided by the step's sum of loss weights. Returns the
  // norm before clipping; clip 0 switches clipping off. UserError, on all ranks alike and with the
  // weights untouched, if the norm is not finite. The gradient is zero afterwards.
  double step(const AdamWOptions& options, double lr, double clip, std::string_view op);
  // Zeroes the gradient without an update: a step whose sum of loss weights is 0.
  void discard_gradients();
  // Adds to a parameter's master copy, outside of the optimizer; summands alike on all ranks.
  void add_to_weight(ParameterId id, std::span<const double> summands);
  // Updates so far: the step of Adam's bias correction, saved with a checkpoint.
  int64_t updates() const;
  void set_updates(int64_t updates);

  // The whole gradient of the step before clipping; for tests. Calls finish_gradients.
  at::Tensor gradient_tensor(std::string_view name, std::string_view op);

  // Filling and saving. `shard` is elements layout().shard(unit, rank()) of the unit. After writing
  // owned weights, refresh_weights brings them into the shards of the other groups; whoever fills
  // the whole shard, alike in all groups, needs no refresh.
  RealSpan shard(int64_t unit);
  OwnedState owned(int64_t unit);
  // Ends the spans: what was written through them counts from here on (refresh_weights does this,
  // too), or was only read.
  void commit_host_copies();
  void drop_host_copies();
  void refresh_weights(std::string_view op);

  // Bytes held, by name; transient buffers at their peak so far.
  std::vector<NamedBytes> memory() const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace longspan
