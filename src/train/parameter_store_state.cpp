#include "train/parameter_store_state.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/sum.h>
#include <ATen/ops/zeros.h>

#include <cmath>
#include <utility>

#include "base/narrow.h"
#include "device/device.h"
#include "train/device_update.h"

namespace longspan {
namespace {

std::vector<ParameterExtent> extents(const std::vector<Parameter>& parameters) {
  std::vector<ParameterExtent> table;
  table.reserve(parameters.size());
  for (const Parameter& parameter : parameters) {
    table.push_back({parameter.unit, parameter.elements(), parameter.expert_block});
  }
  return table;
}

// On a GPU the host waits for it.
double squared_norm_of(const std::vector<at::Tensor>& slices) {
  if constexpr (kBuiltWithCuda) {
    if (!slices.empty() && slices.front().is_cuda()) return device_squared_norm(slices);
  }
  double sum = 0;
  for (const at::Tensor& slice : slices) {
    std::visit(
        [&](auto values) { sum += squared_norm(values.data(), Range(0, std::ssize(values))); },
        real_span(slice));
  }
  return sum;
}

}  // namespace

ParameterStore::State::State(std::vector<Parameter> table, Communicator& communicator,
                             const ParameterStoreOptions& options)
    : parameters(std::move(table)),
      layout(extents(parameters), communicator.size(), options.shard_group, options.expert_group),
      comm(communicator),
      rank(communicator.rank()),
      dtype(options.float64 ? at::kDouble : at::kFloat),
      device(options.device),
      buffers(options.device),
      weights(parameters.size()),
      gradients(parameters.size()) {
  for (size_t id = 0; id < parameters.size(); ++id) {
    const bool fresh = ids.emplace(parameters[id].name, static_cast<ParameterId>(id)).second;
    LONGSPAN_CHECK(fresh, "two parameters named ", parameters[id].name);
  }
  connect();
  for (int64_t unit = 0; unit < layout.num_units(); ++unit) {
    const int64_t shard_elements = layout.shard(unit, rank).size();
    const int64_t owned_elements = layout.owned(unit, rank).size();
    const auto zeros = [&](int64_t elements, at::ScalarType type) {
      return at::zeros({elements}, at::TensorOptions(type).device(device));
    };
    units.push_back({.shard = zeros(shard_elements, dtype),
                     .gradient = zeros(shard_elements, dtype),
                     .first_moment = zeros(owned_elements, dtype),
                     .second_moment = zeros(owned_elements, dtype)});
    if (options.bfloat16) units.back().rounded = zeros(shard_elements, at::kBFloat16);
  }
}

// A subgroup of one rank is left out: it has nothing to say.
void ParameterStore::State::connect() {
  dense_groups = connect(layout.holders_of_block(-1), "shard group", "holders of shard");
  const bool any_experts = parameters.back().expert_block >= 0;
  for (int64_t block = 0; any_experts && block < layout.expert_group(); ++block) {
    UnitGroups groups = connect(layout.holders_of_block(block),
                                text("shard group of expert block ", block, ", group"),
                                text("holders of expert block ", block, ", shard"));
    if (rank % layout.expert_group() == block) expert_groups = std::move(groups);
  }
}

UnitGroups ParameterStore::State::connect(const UnitHolders& holders, std::string_view shard_name,
                                          std::string_view replica_name) {
  UnitGroups groups;
  for (int64_t g = 0; holders.shard_group > 1 && g < holders.num_groups(); ++g) {
    auto group = comm.subgroup(holders.group_ranks(g), text(shard_name, " ", g));
    if (group) groups.shard_comm = std::move(group);
  }
  for (int64_t i = 0; holders.num_groups() > 1 && i < holders.shard_group; ++i) {
    auto group = comm.subgroup(holders.replica_ranks(i), text(replica_name, " ", i));
    if (group) groups.replica_comm = std::move(group);
  }
  return groups;
}

at::Tensor ParameterStore::State::whole(int64_t unit, const at::Tensor& shard,
                                        std::string_view op) {
  at::Tensor all = shard;
  if (holds(unit) && shard_comm(unit) != nullptr) {
    all = at::empty({layout.unit_elements(unit)}, shard.options());
    all_gather(*shard_comm(unit), shard, all, op);
  }
  const UnitHolders holders = layout.holders(unit);
  if (holders.count == layout.num_ranks()) return all;
  at::Tensor host = holds(unit) ? all.cpu() : at::empty({layout.unit_elements(unit)}, dtype);
  comm.broadcast(narrow<int>(holders.first), bytes_of(host), op);
  return host.to(device);
}

// Few and small, so each rank's block holds its own elements and zeros, and all blocks are added.
at::Tensor ParameterStore::State::exact_weights(int64_t unit, std::string_view op) {
  const StoredUnit& stored = at(unit);
  const Range ids_of_unit = layout.unit_parameters(unit);
  std::unordered_map<int64_t, int64_t> begins;  // by parameter
  int64_t elements = 0;
  for (int64_t id = ids_of_unit.begin; id < ids_of_unit.end; ++id) {
    const Parameter& parameter = parameters[static_cast<size_t>(id)];
    if (!parameter.keep_float32) continue;
    begins[id] = elements;
    elements += parameter.elements();
  }
  if (!stored.rounded.defined() || elements == 0) return {};
  at::Tensor own = at::zeros({elements}, stored.shard.options());
  const Range shard = layout.shard(unit, rank);
  for (const FlatSlice& slice : layout.slices(unit, shard)) {
    const auto begin = begins.find(slice.parameter);
    if (begin == begins.end()) continue;
    part(own, shift(slice.elements, begin->second))
        .copy_(stored.shard.narrow(0, slice.flat_begin - shard.begin, slice.elements.size()));
  }
  Communicator* shards = shard_comm(unit);
  if (shards == nullptr) return own;
  const at::Tensor all = at::empty({shards->size(), elements}, own.options());
  all_gather(*shards, own, all.view({-1}), text(op, ", unrounded weights"));
  return all.sum(0);
}

void ParameterStore::State::set_exact_views(int64_t unit, const at::Tensor& exact) {
  if (!exact.defined()) return;
  const Range ids_of_unit = layout.unit_parameters(unit);
  int64_t begin = 0;
  for (int64_t id = ids_of_unit.begin; id < ids_of_unit.end; ++id) {
    const Parameter& parameter = parameters[static_cast<size_t>(id)];
    if (!parameter.keep_float32) continue;
    weights[static_cast<size_t>(id)] =
        exact.narrow(0, begin, parameter.elements()).view(parameter.shape);
    begin += parameter.elements();
  }
}

void ParameterStore::State::sum_across_groups(int64_t unit, std::string_view op) {
  StoredUnit& stored = at(unit);
  LONGSPAN_CHECK(!stored.open.defined(), "gradients of ", unit_label(unit), " are open; ", op);
  if (!holds(unit)) return;
  group_gradient(stored);
  if (Communicator* replicas = replica_comm(unit)) {
    at::Tensor sum = buffers.take(layout.owned(unit, rank).size(), dtype);
    reduce_scatter(*replicas, stored.gradient, sum, op);
    part(stored.gradient, owned_in_shard(unit)).copy_(sum);
    buffers.give_back(std::move(sum));
  }
  stored.state = Gradient::kGlobal;
}

// Each element counts once, because each is owned once; padding is zero.
double ParameterStore::State::global_norm(std::string_view op) {
  std::vector<at::Tensor> slices;
  for (int64_t unit = 0; unit < layout.num_units(); ++unit) {
    if (holds(unit)) slices.push_back(part(at(unit).gradient, owned_in_shard(unit)));
  }
  double sum = squared_norm_of(slices);
  comm.all_reduce_sum(std::span(&sum, 1), op);
  return std::sqrt(sum);
}

void ParameterStore::State::update_unit(int64_t unit, const AdamWOptions& options, double lr,
                                        double factor) {
  StoredUnit& stored = at(unit);
  const Range owned = layout.owned(unit, rank);
  AdamWStep step{.learning_rate = lr,
                 .beta1 = options.beta1,
                 .beta2 = options.beta2,
                 .epsilon = options.eps,
                 .gradient_scale = factor,
                 .step = updates};
  if constexpr (kBuiltWithCuda) {
    if (!device.is_cpu()) return update_on_device(stored, unit, step, options.weight_decay);
  }
  std::visit(
      [&](auto masters) {
        using Span = decltype(masters);
        const auto array = [](const at::Tensor& flat) {
          return std::get<Span>(real_span(flat)).data();
        };
        for (const FlatSlice& slice : layout.slices(unit, owned)) {
          const Parameter& parameter = parameters[static_cast<size_t>(slice.parameter)];
          if (!parameter.trained) continue;
          const int64_t begin = slice.flat_begin - owned.begin;
          step.weight_decay = parameter.decayed ? options.weight_decay : 0.0;
          adamw_update(step, {begin, begin + slice.elements.size()},
                       array(part(stored.gradient, owned_in_shard(unit))), masters.data(),
                       array(stored.first_moment), array(stored.second_moment));
        }
      },
      real_span(part(stored.shard, owned_in_shard(unit))));
}

void ParameterStore::State::update_on_device(StoredUnit& stored, int64_t unit, AdamWStep step,
                                             double weight_decay) {
  const Range owned = layout.owned(unit, rank);
  const Range in_shard = owned_in_shard(unit);
  const DeviceUpdate whole{
      .gradient = part(stored.gradient, in_shard),
      .weight = part(stored.shard, in_shard),
      .first_moment = stored.first_moment,
      .second_moment = stored.second_moment,
      .rounded = stored.rounded.defined() ? part(stored.rounded, in_shard) : at::Tensor()};
  for (const FlatSlice& slice : layout.slices(unit, owned)) {
    const Parameter& parameter = parameters[static_cast<size_t>(slice.parameter)];
    if (!parameter.trained) continue;
    const int64_t begin = slice.flat_begin - owned.begin;
    step.weight_decay = parameter.decayed ? weight_decay : 0.0;
    if constexpr (kBuiltWithCuda) {
      device_update(step, whole, {begin, begin + slice.elements.size()});
    }
  }
}

// Slices of other groups come rounded by nobody else.
void ParameterStore::State::refresh(int64_t unit, std::string_view op) {
  StoredUnit& stored = at(unit);
  Communicator* replicas = replica_comm(unit);
  if (replicas == nullptr) return;
  all_gather(*replicas, part(stored.shard, owned_in_shard(unit)), stored.shard, op);
  if (stored.rounded.defined()) stored.rounded.copy_(stored.shard);
}

void ParameterStore::State::commit_host_copies(StoredUnit& stored, int64_t unit) {
  const HostCopies host = std::exchange(stored.host, {});
  if (host.shard.defined()) stored.shard.copy_(host.shard);
  if (host.owned_weights.defined()) {
    part(stored.shard, owned_in_shard(unit)).copy_(host.owned_weights);
    stored.first_moment.copy_(host.first_moment);
    stored.second_moment.copy_(host.second_moment);
  }
  if (stored.rounded.defined()) stored.rounded.copy_(stored.shard);
}

// Gathered copies would go stale.
void ParameterStore::State::check_released(std::string_view op) const {
  for (const StoredUnit& unit : units) {
    LONGSPAN_CHECK(!unit.gathered.defined(), "weights are gathered while they change; ", op);
  }
}

void ParameterStore::State::forget_gradients() {
  for (StoredUnit& unit : units) {
    LONGSPAN_CHECK(!unit.open.defined(), "gradients are open at the end of a step");
    unit.state = Gradient::kNothing;
  }
  norm.reset();
}

}  // namespace longspan
