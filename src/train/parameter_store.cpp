// Flat arrays throughout: U elements of a unit, U/S of a shard, U/R of an owned slice.
#include "train/parameter_store.h"

#include <ATen/core/Tensor.h>
#include <ATen/ops/zeros.h>

#include <cmath>
#include <optional>
#include <unordered_map>

#include "base/check.h"
#include "kernels/cpu/adamw.h"
#include "train/flat_buffers.h"

namespace longspan {
namespace {

RealSpan real_span(const at::Tensor& flat) {
  const auto elements = static_cast<size_t>(flat.numel());
  if (flat.scalar_type() == at::kDouble) {
    return std::span<double>(flat.data_ptr<double>(), elements);
  }
  return std::span<float>(flat.data_ptr<float>(), elements);
}

at::Tensor part(const at::Tensor& flat, Range range) {
  return flat.narrow(0, range.begin, range.size());
}

// `gathered` = the blocks of all ranks; `own` may be this rank's block there.
void all_gather(Communicator& comm, const at::Tensor& own, const at::Tensor& gathered,
                std::string_view op) {
  std::visit(
      [&](auto own_span) {
        comm.all_gather(std::as_bytes(own_span),
                        std::as_writable_bytes(std::get<decltype(own_span)>(real_span(gathered))),
                        op);
      },
      real_span(own));
}

void reduce_scatter(Communicator& comm, const at::Tensor& input, const at::Tensor& own,
                    std::string_view op) {
  std::visit(
      [&](auto own_span) {
        comm.reduce_scatter(std::get<decltype(own_span)>(real_span(input)), own_span, op);
      },
      real_span(own));
}

std::vector<ParameterExtent> extents(const std::vector<Parameter>& parameters) {
  std::vector<ParameterExtent> table;
  table.reserve(parameters.size());
  for (const Parameter& parameter : parameters) {
    table.push_back({parameter.unit, parameter.elements()});
  }
  return table;
}

// What the shard's gradient array holds.
enum class Gradient {
  kNothing,  // undefined bytes that stand for zero
  kGroup,    // sums of this group
  kGlobal    // the owned slice: the sum over all ranks; the rest: undefined
};

struct StoredUnit {
  at::Tensor shard;          // [U/S]
  at::Tensor gradient;       // [U/S]
  at::Tensor first_moment;   // [U/R]
  at::Tensor second_moment;  // [U/R]
  at::Tensor gathered;       // [U] while gathered
  at::Tensor open;           // [U] while open
  Gradient state = Gradient::kNothing;
};

}  // namespace

struct ParameterStore::State {
  State(std::vector<Parameter> table, Communicator& communicator,
        const ParameterStoreOptions& options)
      : parameters(std::move(table)),
        layout(extents(parameters), communicator.size(), options.shard_group),
        comm(communicator),
        rank(communicator.rank()),
        dtype(options.float64 ? at::kDouble : at::kFloat),
        buffers(dtype),
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
      units.push_back({.shard = at::zeros({shard_elements}, dtype),
                       .gradient = at::zeros({shard_elements}, dtype),
                       .first_moment = at::zeros({owned_elements}, dtype),
                       .second_moment = at::zeros({owned_elements}, dtype)});
    }
  }

  // A subgroup of one rank is left out: it has nothing to say.
  void connect() {
    if (layout.shard_group() > 1) {
      for (int64_t g = 0; g < layout.num_groups(); ++g) {
        auto group = comm.subgroup(layout.group_ranks(g), text("shard group ", g));
        if (group) shard_comm = std::move(group);
      }
    }
    if (layout.num_groups() > 1) {
      for (int64_t i = 0; i < layout.shard_group(); ++i) {
        auto group = comm.subgroup(layout.replica_ranks(i), text("holders of shard ", i));
        if (group) replica_comm = std::move(group);
      }
    }
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
  void refresh(int64_t unit, std::string_view op);
  void check_released(std::string_view op) const;
  void forget_gradients();

  std::vector<Parameter> parameters;
  std::unordered_map<std::string, ParameterId> ids;
  ParameterLayout layout;
  Communicator& comm;
  std::unique_ptr<Communicator> shard_comm;    // null: this rank alone
  std::unique_ptr<Communicator> replica_comm;  // null: this rank alone
  int64_t rank;
  at::ScalarType dtype;
  FlatBuffers buffers;
  std::vector<StoredUnit> units;
  std::vector<at::Tensor> weights;    // defined while gathered
  std::vector<at::Tensor> gradients;  // defined while open
  std::optional<double> norm;         // of the finished gradient
  int64_t updates = 0;
};

ParameterStore::ParameterStore(std::vector<Parameter> parameters, Communicator& comm,
                               const ParameterStoreOptions& options)
    : state_(std::make_unique<State>(std::move(parameters), comm, options)) {}

ParameterStore::~ParameterStore() = default;

const ParameterLayout& ParameterStore::layout() const {
  return state_->layout;
}

const std::vector<Parameter>& ParameterStore::parameters() const {
  return state_->parameters;
}

ParameterId ParameterStore::find(std::string_view name) const {
  const auto found = state_->ids.find(std::string(name));
  if (found == state_->ids.end()) {
    throw UserError(text("the model has no parameter named '", name,
                         "'; names are those of the "
                         "Hugging Face weights, such as '",
                         state_->parameters.front().name, "'"));
  }
  return found->second;
}

bool ParameterStore::float64() const {
  return state_->dtype == at::kDouble;
}

int64_t ParameterStore::rank() const {
  return state_->rank;
}

void ParameterStore::gather(int64_t unit, std::string_view op) {
  State& state = *state_;
  StoredUnit& stored = state.at(unit);
  LONGSPAN_CHECK(!stored.gathered.defined(), state.unit_label(unit), " is gathered already; ", op);
  if (state.shard_comm) {
    stored.gathered = state.buffers.take(state.layout.unit_elements(unit));
    all_gather(*state.shard_comm, stored.shard, stored.gathered, op);
  } else {
    stored.gathered = stored.shard;
  }
  state.set_views(state.weights, unit, stored.gathered);
}

void ParameterStore::release(int64_t unit) {
  State& state = *state_;
  StoredUnit& stored = state.at(unit);
  LONGSPAN_CHECK(stored.gathered.defined(), state.unit_label(unit), " is not gathered");
  state.drop_views(state.weights, unit);
  if (state.shard_comm) state.buffers.give_back(std::move(stored.gathered));
  stored.gathered.reset();
}

bool ParameterStore::gathered(int64_t unit) const {
  return state_->at(unit).gathered.defined();
}

const at::Tensor& ParameterStore::weight(ParameterId id) const {
  const at::Tensor& weight = state_->weights.at(static_cast<size_t>(id));
  LONGSPAN_CHECK(weight.defined(), "weight of ", state_->parameters[static_cast<size_t>(id)].name,
                 " asked for while its unit is not gathered");
  return weight;
}

RealSpan ParameterStore::gathered_flat(int64_t unit) {
  StoredUnit& stored = state_->at(unit);
  LONGSPAN_CHECK(stored.gathered.defined(), state_->unit_label(unit), " is not gathered");
  return real_span(stored.gathered);
}

void ParameterStore::open_gradients(int64_t unit) {
  State& state = *state_;
  StoredUnit& stored = state.at(unit);
  LONGSPAN_CHECK(!stored.open.defined(), "gradients of ", state.unit_label(unit), " are open");
  if (state.shard_comm) {
    stored.open = state.buffers.take(state.layout.unit_elements(unit));
    stored.open.zero_();
  } else {
    stored.open = state.group_gradient(stored);
  }
  state.set_views(state.gradients, unit, stored.open);
}

at::Tensor& ParameterStore::gradient(ParameterId id) {
  at::Tensor& gradient = state_->gradients.at(static_cast<size_t>(id));
  LONGSPAN_CHECK(gradient.defined(), "gradient of ",
                 state_->parameters[static_cast<size_t>(id)].name,
                 " asked for while its unit is not open");
  return gradient;
}

void ParameterStore::reduce_gradients(int64_t unit, std::string_view op) {
  State& state = *state_;
  StoredUnit& stored = state.at(unit);
  LONGSPAN_CHECK(stored.open.defined(), "gradients of ", state.unit_label(unit), " are not open");
  state.drop_views(state.gradients, unit);
  if (state.shard_comm) {
    LONGSPAN_CHECK(stored.state != Gradient::kGlobal, "the step's gradient is finished; ", op);
    if (stored.state == Gradient::kNothing) {
      reduce_scatter(*state.shard_comm, stored.open, stored.gradient, op);
      stored.state = Gradient::kGroup;
    } else {
      at::Tensor sum = state.buffers.take(stored.gradient.numel());
      reduce_scatter(*state.shard_comm, stored.open, sum, op);
      stored.gradient.add_(sum);
      state.buffers.give_back(std::move(sum));
    }
    state.buffers.give_back(std::move(stored.open));
  }
  stored.open.reset();
}

void ParameterStore::State::sum_across_groups(int64_t unit, std::string_view op) {
  StoredUnit& stored = at(unit);
  LONGSPAN_CHECK(!stored.open.defined(), "gradients of ", unit_label(unit), " are open; ", op);
  group_gradient(stored);
  if (replica_comm) {
    at::Tensor sum = buffers.take(layout.owned(unit, rank).size());
    reduce_scatter(*replica_comm, stored.gradient, sum, op);
    part(stored.gradient, owned_in_shard(unit)).copy_(sum);
    buffers.give_back(std::move(sum));
  }
  stored.state = Gradient::kGlobal;
}

// Each element counts once, because each is owned once; padding is zero.
double ParameterStore::State::global_norm(std::string_view op) {
  double sum = 0;
  for (int64_t unit = 0; unit < layout.num_units(); ++unit) {
    std::visit([&](auto slice) { sum += squared_norm(slice.data(), Range(0, std::ssize(slice))); },
               real_span(part(at(unit).gradient, owned_in_shard(unit))));
  }
  comm.all_reduce_sum(std::span(&sum, 1), op);
  return std::sqrt(sum);
}

double ParameterStore::finish_gradients(std::string_view op) {
  State& state = *state_;
  if (!state.norm) {
    for (int64_t unit = 0; unit < state.layout.num_units(); ++unit) {
      state.sum_across_groups(unit, op);
    }
    state.norm = state.global_norm(op);
  }
  return *state.norm;
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
  std::visit(
      [&](auto masters) {
        using Span = decltype(masters);
        const auto array = [](const at::Tensor& flat) {
          return std::get<Span>(real_span(flat)).data();
        };
        for (const FlatSlice& slice : layout.slices(unit, owned)) {
          const int64_t begin = slice.flat_begin - owned.begin;
          const bool decayed = parameters[static_cast<size_t>(slice.parameter)].decayed;
          step.weight_decay = decayed ? options.weight_decay : 0.0;
          adamw_update(step, {begin, begin + slice.elements.size()},
                       array(part(stored.gradient, owned_in_shard(unit))), masters.data(),
                       array(stored.first_moment), array(stored.second_moment));
        }
      },
      real_span(part(stored.shard, owned_in_shard(unit))));
}

void ParameterStore::State::refresh(int64_t unit, std::string_view op) {
  StoredUnit& stored = at(unit);
  if (replica_comm) {
    all_gather(*replica_comm, part(stored.shard, owned_in_shard(unit)), stored.shard, op);
  }
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

double ParameterStore::step(const AdamWOptions& options, double lr, double clip,
                            std::string_view op) {
  State& state = *state_;
  state.check_released(op);
  const double norm = finish_gradients(op);
  if (!std::isfinite(norm)) {
    throw UserError(text("the norm of the gradient is ", norm, " (", op,
                         "); the weights are as before it. Resume from the last checkpoint with a "
                         "lower optimizer.lr or a longer optimizer.warmup_steps; if it comes back "
                         "at the same step, look at the documents of that step"));
  }
  const double factor = clip_factor(norm, clip);
  ++state.updates;
  for (int64_t unit = 0; unit < state.layout.num_units(); ++unit) {
    state.update_unit(unit, options, lr, factor);
    state.refresh(unit, op);
  }
  state.forget_gradients();
  return norm;
}

void ParameterStore::discard_gradients() {
  state_->forget_gradients();
}

int64_t ParameterStore::updates() const {
  return state_->updates;
}

void ParameterStore::set_updates(int64_t updates) {
  LONGSPAN_CHECK(updates >= 0, "updates ", updates);
  state_->updates = updates;
}

at::Tensor ParameterStore::gradient_tensor(std::string_view name, std::string_view op) {
  State& state = *state_;
  finish_gradients(op);
  const ParameterId id = find(name);
  const ParameterPlace place = state.layout.place(id);
  const StoredUnit& stored = state.at(place.unit);
  at::Tensor shard = stored.gradient;
  if (state.replica_comm) {
    shard = at::zeros({stored.gradient.numel()}, state.dtype);
    all_gather(*state.replica_comm, part(stored.gradient, state.owned_in_shard(place.unit)), shard,
               op);
  }
  at::Tensor whole = shard;
  if (state.shard_comm) {
    whole = at::zeros({state.layout.unit_elements(place.unit)}, state.dtype);
    all_gather(*state.shard_comm, shard, whole, op);
  }
  return part(whole, place.flat).view(state.parameters[static_cast<size_t>(id)].shape).clone();
}

RealSpan ParameterStore::shard(int64_t unit) {
  return real_span(state_->at(unit).shard);
}

OwnedState ParameterStore::owned(int64_t unit) {
  StoredUnit& stored = state_->at(unit);
  return {.flat = state_->layout.owned(unit, state_->rank),
          .weights = real_span(part(stored.shard, state_->owned_in_shard(unit))),
          .first_moment = real_span(stored.first_moment),
          .second_moment = real_span(stored.second_moment)};
}

void ParameterStore::refresh_weights(std::string_view op) {
  state_->check_released(op);
  for (int64_t unit = 0; unit < state_->layout.num_units(); ++unit) state_->refresh(unit, op);
}

std::vector<NamedBytes> ParameterStore::memory() const {
  int64_t weights = 0;
  int64_t gradients = 0;
  int64_t moments = 0;
  for (const StoredUnit& unit : state_->units) {
    weights += static_cast<int64_t>(unit.shard.nbytes());
    gradients += static_cast<int64_t>(unit.gradient.nbytes());
    moments += static_cast<int64_t>(unit.first_moment.nbytes() + unit.second_moment.nbytes());
  }
  return {{"weight shards", weights},
          {"gradient shards", gradients},
          {"optimizer moments", moments},
          {"gathered weights, open gradients", state_->buffers.held_bytes()}};
}

}  // namespace longspan
