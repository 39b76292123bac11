// What a ParameterStore holds, and the arithmetic of its step. Private to train/.
//
// Flat arrays throughout: U elements of a unit, U/S of a shard, U/R of an owned slice. On a GPU all
// of them lie there; HostCopies stand for those that somebody reads or fills on the host.
// One rank's thread; functions that take `op` communicate.
#pragma once

#include <ATen/core/Tensor.h>

#include <optional>
#include <unordered_map>

#include "base/check.h"
#include "kernels/cpu/adamw.h"
#include "train/flat_buffers.h"
#include "train/parameter_store.h"

namespace longspan {

inline RealSpan real_span(const at::Tensor& flat) {
  const auto elements = static_cast<size_t>(flat.numel());
  if (flat.scalar_type() == at::kDouble) {
    return std::span<double>(flat.data_ptr<double>(), elements);
  }
  return std::span<float>(flat.data_ptr<float>(), elements);
}

inline std::span<std::byte> bytes_of(const at::Tensor& flat) {
  return {static_cast<std::byte*>(flat.data_ptr()), flat.nbytes()};
}

inline at::Tensor part(const at::Tensor& flat, Range range) {
  return flat.narrow(0, range.begin, range.size());
}

// `gathered` = the blocks of all ranks; `own` may be this rank's block there.
inline void all_gather(Communicator& comm, const at::Tensor& own, const at::Tensor& gathered,
                       std::string_view op) {
  comm.all_gather(bytes_of(own), bytes_of(gathered), op);
}

inline void reduce_scatter(Communicator& comm, const at::Tensor& input, const at::Tensor& own,
                           std::string_view op) {
  std::visit(
      [&](auto own_span) {
        comm.reduce_scatter(std::get<decltype(own_span)>(real_span(input)), own_span, op);
      },
      real_span(own));
}

// What the shard's gradient array holds.
enum class Gradient {
  kNothing,  // undefined bytes that stand for zero
  kGroup,    // sums of this group
  kGlobal    // the owned slice: the sum over all ranks; the rest: undefined
};

// Of a unit on a GPU, while somebody reads or writes its arrays: in host memory.
struct HostCopies {
  at::Tensor shard;
  at::Tensor owned_weights;
  at::Tensor first_moment;
  at::Tensor second_moment;
};

struct StoredUnit {
  at::Tensor shard;          // [U/S], the master copy
  at::Tensor rounded;        // [U/S] in bfloat16, if products read that
  at::Tensor gradient;       // [U/S]
  at::Tensor first_moment;   // [U/R]
  at::Tensor second_moment;  // [U/R]
  at::Tensor gathered;       // [U] while gathered
  at::Tensor open;           // [U] while open
  at::Tensor sum;            // [U/S] while a reduction adds to an earlier one
  bool reduced = false;      // open, but complete
  Gradient state = Gradient::kNothing;
  HostCopies host;

  const at::Tensor& product_weights() const { return rounded.defined() ? rounded : shard; }
};

// Whom the holders of a unit talk to. Null: this rank alone.
struct UnitGroups {
  std::unique_ptr<Communicator> shard_comm;
  std::unique_ptr<Communicator> replica_comm;
};

struct ParameterStore::State {
  State(std::vector<Parameter> table, Communicator& communicator,
        const ParameterStoreOptions& options);
  void connect();
  UnitGroups connect(const UnitHolders& holders, std::string_view shard_name,
                     std::string_view replica_name);

  bool holds(int64_t unit) const { return layout.holders(unit).contain(rank); }
  // Null: this rank alone.
  Communicator* shard_comm(int64_t unit) const {
    LONGSPAN_CHECK(holds(unit), unit_label(unit), " lies on other ranks");
    return groups(unit).shard_comm.get();
  }
  Communicator* replica_comm(int64_t unit) const {
    return holds(unit) ? groups(unit).replica_comm.get() : nullptr;
  }
  // The unit's flat array, of which this rank has `shard`; on all ranks.
  at::Tensor whole(int64_t unit, const at::Tensor& shard, std::string_view op);
  const UnitGroups& groups(int64_t unit) const {
    return layout.expert_block(unit) < 0 ? dense_groups : expert_groups;
  }

  StoredUnit& at(int64_t unit) {
    LONGSPAN_CHECK(Range(0, layout.num_units()).contains(unit), "unit ", unit, " of ",
                   layout.num_units());
    return units[static_cast<size_t>(unit)];
  }

  // This rank's owned slice, counted from the start of its shard.
  Range owned_in_shard(int64_t unit) const {
    return shift(layout.owned(unit, rank), -layout.shard(unit, rank).begin);
  }

  void set_views(std::vector<at::Tensor>& views, int64_t unit, const at::Tensor& flat) {
    const Range ids_of_unit = layout.unit_parameters(unit);
    for (int64_t id = ids_of_unit.begin; id < ids_of_unit.end; ++id) {
      const auto index = static_cast<size_t>(id);
      views[index] = part(flat, layout.place(id).flat).view(parameters[index].shape);
    }
  }

  // With bfloat16 products: what a unit's parameters that must not be rounded are read from, a flat
  // array in their order; undefined if there are none.
  at::Tensor exact_weights(int64_t unit, std::string_view op);
  void set_exact_views(int64_t unit, const at::Tensor& exact);

  void drop_views(std::vector<at::Tensor>& views, int64_t unit) {
    const Range ids_of_unit = layout.unit_parameters(unit);
    for (int64_t id = ids_of_unit.begin; id < ids_of_unit.end; ++id) {
      views[static_cast<size_t>(id)].reset();
    }
  }

  // The shard's sums, zeroed if they still stand for zero.
  at::Tensor& group_gradient(StoredUnit& unit) {
    LONGSPAN_CHECK(unit.state != Gradient::kGlobal,
                   "the step's gradient is finished; step or discard it before adding more");
    if (unit.state == Gradient::kNothing) {
      unit.gradient.zero_();
      unit.state = Gradient::kGroup;
    }
    return unit.gradient;
  }

  std::string unit_label(int64_t unit) const {
    return parameters[static_cast<size_t>(layout.unit_parameters(unit).begin)].name;
  }

  void sum_across_groups(int64_t unit, std::string_view op);
  double global_norm(std::string_view op);
  void update_unit(int64_t unit, const AdamWOptions& options, double lr, double factor);
  void update_on_device(StoredUnit& stored, int64_t unit, AdamWStep step, double weight_decay);
  void refresh(int64_t unit, std::string_view op);
  void commit_host_copies(StoredUnit& unit, int64_t unit_idx);
  void check_released(std::string_view op) const;
  void forget_gradients();

  std::vector<Parameter> parameters;
  std::unordered_map<std::string, ParameterId> ids;
  ParameterLayout layout;
  Communicator& comm;
  UnitGroups dense_groups;   // of units on all ranks
  UnitGroups expert_groups;  // of the expert block of this rank
  int64_t rank;
  at::ScalarType dtype;
  at::Device device;
  FlatBuffers buffers;
  std::vector<StoredUnit> units;
  std::vector<at::Tensor> weights;    // defined while gathered
  std::vector<at::Tensor> gradients;  // defined while open
  std::optional<double> norm;         // of the finished gradient
  int64_t updates = 0;
  at::Tensor master;  // what gather_master gave out
};

}  // namespace longspan
