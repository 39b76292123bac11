#include "train/parameter_store.h"

#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>

#include <cmath>

#include "train/parameter_store_state.h"

namespace longspan {

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
  if (Communicator* shards = state.shard_comm(unit)) {
    const at::Tensor& weights = stored.product_weights();
    stored.gathered = state.buffers.take(state.layout.unit_elements(unit), weights.scalar_type());
    all_gather(*shards, weights, stored.gathered, op);
  } else {
    stored.gathered = stored.product_weights();
  }
  state.set_views(state.weights, unit, stored.gathered);
  state.set_exact_views(unit, state.exact_weights(unit, op));
}

void ParameterStore::release(int64_t unit) {
  State& state = *state_;
  StoredUnit& stored = state.at(unit);
  LONGSPAN_CHECK(stored.gathered.defined(), state.unit_label(unit), " is not gathered");
  state.drop_views(state.weights, unit);
  if (state.shard_comm(unit)) state.buffers.give_back(std::move(stored.gathered));
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

RealSpan ParameterStore::gather_master(int64_t unit, std::string_view op) {
  State& state = *state_;
  state.master = state.whole(unit, state.at(unit).shard, op).cpu();
  return real_span(state.master);
}

void ParameterStore::open_gradients(int64_t unit) {
  State& state = *state_;
  StoredUnit& stored = state.at(unit);
  LONGSPAN_CHECK(!stored.open.defined(), "gradients of ", state.unit_label(unit), " are open");
  if (state.shard_comm(unit)) {
    stored.open = state.buffers.take(state.layout.unit_elements(unit), state.dtype);
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
  LONGSPAN_CHECK(!stored.reduced, "gradients of ", state.unit_label(unit), " are reduced already");
  state.drop_views(state.gradients, unit);
  stored.reduced = true;
  Communicator* shards = state.shard_comm(unit);
  if (shards == nullptr) return;
  LONGSPAN_CHECK(stored.state != Gradient::kGlobal, "the step's gradient is finished; ", op);
  if (stored.state == Gradient::kNothing) {
    reduce_scatter(*shards, stored.open, stored.gradient, op);
    stored.state = Gradient::kGroup;
  } else {
    stored.sum = state.buffers.take(stored.gradient.numel(), state.dtype);
    reduce_scatter(*shards, stored.open, stored.sum, op);
    stored.gradient.add_(stored.sum);
  }
}

void ParameterStore::close_gradients(int64_t unit) {
  State& state = *state_;
  StoredUnit& stored = state.at(unit);
  LONGSPAN_CHECK(stored.reduced, "gradients of ", state.unit_label(unit), " are not reduced");
  if (state.shard_comm(unit)) state.buffers.give_back(std::move(stored.open));
  if (stored.sum.defined()) state.buffers.give_back(std::move(stored.sum));
  stored.open.reset();
  stored.sum.reset();
  stored.reduced = false;
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

// Every holder of a copy adds the same, so copies need no refresh.
void ParameterStore::add_to_weight(ParameterId id, std::span<const double> summands) {
  State& state = *state_;
  const Parameter& parameter = state.parameters.at(static_cast<size_t>(id));
  LONGSPAN_CHECK(std::ssize(summands) == parameter.elements(), parameter.name, ": ",
                 summands.size(), " summands");
  const ParameterPlace place = state.layout.place(id);
  StoredUnit& stored = state.at(place.unit);
  LONGSPAN_CHECK(!stored.gathered.defined(), parameter.name, " is gathered while it changes");
  const Range shard = state.layout.shard(place.unit, state.rank);
  const Range own = intersect(place.flat, shard);
  if (own.empty()) return;
  const auto first = summands.begin() + (own.begin - place.flat.begin);
  at::Tensor values = at::empty({own.size()}, state.dtype);
  std::visit(
      [&](auto to) {
        std::transform(first, first + own.size(), to.begin(), [](double value) {
          return static_cast<typename decltype(to)::value_type>(value);
        });
      },
      real_span(values));
  const Range place_in_shard = shift(own, -shard.begin);
  part(stored.shard, place_in_shard).add_(values.to(state.device));
  if (stored.rounded.defined()) {
    part(stored.rounded, place_in_shard).copy_(part(stored.shard, place_in_shard));
  }
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
  if (Communicator* replicas = state.replica_comm(place.unit)) {
    shard = at::zeros({stored.gradient.numel()}, stored.gradient.options());
    all_gather(*replicas, part(stored.gradient, state.owned_in_shard(place.unit)), shard, op);
  }
  return part(state.whole(place.unit, shard, op), place.flat)
      .view(state.parameters[static_cast<size_t>(id)].shape)
      .clone()
      .cpu();
}

RealSpan ParameterStore::shard(int64_t unit) {
  StoredUnit& stored = state_->at(unit);
  if (state_->device.is_cpu()) return real_span(stored.shard);
  if (!stored.host.shard.defined()) stored.host.shard = stored.shard.cpu();
  return real_span(stored.host.shard);
}

OwnedState ParameterStore::owned(int64_t unit) {
  StoredUnit& stored = state_->at(unit);
  HostCopies views{.owned_weights = part(stored.shard, state_->owned_in_shard(unit)),
                   .first_moment = stored.first_moment,
                   .second_moment = stored.second_moment};
  if (!state_->device.is_cpu()) {
    if (!stored.host.owned_weights.defined()) {
      stored.host.owned_weights = views.owned_weights.cpu();
      stored.host.first_moment = views.first_moment.cpu();
      stored.host.second_moment = views.second_moment.cpu();
    }
    views = stored.host;
  }
  return {.flat = state_->layout.owned(unit, state_->rank),
          .weights = real_span(views.owned_weights),
          .first_moment = real_span(views.first_moment),
          .second_moment = real_span(views.second_moment)};
}

void ParameterStore::commit_host_copies() {
  for (int64_t unit = 0; unit < state_->layout.num_units(); ++unit) {
    if (!state_->device.is_cpu()) state_->commit_host_copies(state_->at(unit), unit);
  }
}

void ParameterStore::drop_host_copies() {
  for (StoredUnit& unit : state_->units) unit.host = {};
}

void ParameterStore::refresh_weights(std::string_view op) {
  state_->check_released(op);
  commit_host_copies();
  for (int64_t unit = 0; unit < state_->layout.num_units(); ++unit) state_->refresh(unit, op);
}

std::vector<NamedBytes> ParameterStore::memory() const {
  int64_t weights = 0;
  int64_t gradients = 0;
  int64_t moments = 0;
  for (const StoredUnit& unit : state_->units) {
    weights += static_cast<int64_t>(unit.shard.nbytes());
    if (unit.rounded.defined()) weights += static_cast<int64_t>(unit.rounded.nbytes());
    gradients += static_cast<int64_t>(unit.gradient.nbytes());
    moments += static_cast<int64_t>(unit.first_moment.nbytes() + unit.second_moment.nbytes());
  }
  return {{"weight shards", weights},
          {"gradient shards", gradients},
          {"optimizer moments", moments},
          {"gathered weights, open gradients", state_->buffers.held_bytes()}};
}

}  // namespace longspan
