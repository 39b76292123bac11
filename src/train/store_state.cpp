#include "train/store_state.h"

#include <optional>
#include <string>

#include "base/check.h"
#include "checkpoint/agreement.h"
#include "spec/hf_config.h"

namespace longspan {
namespace {

// The owned range of a unit without the padding at its end.
Range owned_parameters(const ParameterStore& store, int64_t unit) {
  const ParameterLayout& layout = store.layout();
  return intersect(layout.owned(unit, store.rank()), {0, layout.used_elements(unit)});
}

// Parameter by parameter, because the checkpoint may have dealt experts out to other units.
void load_owned(ParameterStore& store, int64_t unit, SavedState& saved) {
  const OwnedState state = store.owned(unit);
  for (const FlatSlice& slice : store.layout().slices(unit, state.flat)) {
    const std::string& name = store.parameters()[static_cast<size_t>(slice.parameter)].name;
    const int64_t begin = slice.flat_begin - state.flat.begin;
    const auto read = [&](const char* kind, const RealSpan& values) {
      saved.read_parameter(name, kind, slice.elements,
                           sub_span(values, {begin, begin + slice.elements.size()}));
    };
    read("weights", state.weights);
    read("first_moment", state.first_moment);
    read("second_moment", state.second_moment);
  }
}

}  // namespace

void fill_weights(ParameterStore& store, Communicator& comm, std::string_view op,
                  const WeightFiller& filler) {
  agree(comm, op, [&] {
    const ParameterLayout& layout = store.layout();
    for (int64_t unit = 0; unit < layout.num_units(); ++unit) {
      const Range shard = layout.shard(unit, store.rank());
      for (const FlatSlice& slice : layout.slices(unit, shard)) {
        const int64_t begin = slice.flat_begin - shard.begin;
        filler(slice.parameter, slice.elements,
               sub_span(store.shard(unit), {begin, begin + slice.elements.size()}));
      }
      store.commit_host_copies();
    }
  });
}

void load_hf_weights(ParameterStore& store, Communicator& comm,
                     const std::filesystem::path& folder) {
  const std::string op = text("load weights of ", folder.string());
  std::optional<HfWeights> weights;
  agree(comm, op, [&] { weights.emplace(folder, load_hf_config(folder), store.parameters()); });
  fill_weights(store, comm, op, [&](ParameterId id, Range elements, const RealSpan& destination) {
    weights->read(id, elements, destination);
  });
}

std::vector<StateArray> state_arrays(ParameterStore& store) {
  std::vector<StateArray> arrays;
  for (int64_t unit = 0; unit < store.layout().num_units(); ++unit) {
    const OwnedState state = store.owned(unit);
    const Range owned = owned_parameters(store, unit);
    const Range part = shift(owned, -state.flat.begin);
    const int64_t elements = store.layout().used_elements(unit);
    const auto add = [&](const char* kind, const RealSpan& values) {
      arrays.push_back({state_array_name(unit, kind), elements, owned,
                        owned.empty() ? sub_span(values, {0, 0}) : sub_span(values, part)});
    };
    add("weights", state.weights);
    add("first_moment", state.first_moment);
    add("second_moment", state.second_moment);
  }
  return arrays;
}

void load_state(ParameterStore& store, Communicator& comm, SavedState& saved) {
  const std::string op = text("load checkpoint ", saved.folder().string());
  agree(comm, op, [&] {
    saved.check_model(store.parameters(), store.float64());
    for (int64_t unit = 0; unit < store.layout().num_units(); ++unit) {
      load_owned(store, unit, saved);
    }
  });
  store.set_updates(saved.manifest().progress.updates);
  store.refresh_weights(op);
}

void export_weights(ParameterStore& store, Communicator& comm, const ModelSpec& spec,
                    const std::filesystem::path& to, const HfExportOptions& options) {
  const std::string op = text("export to ", to.string());
  const bool is_writer = comm.rank() == 0;
  const ParameterLayout& layout = store.layout();
  std::optional<HfModelWriter> writer;
  HfExportOptions of_store = options;
  of_store.expert_group = layout.expert_group();
  agree(comm, op, [&] {
    if (is_writer) writer.emplace(to, spec, of_store);
  });
  for (int64_t unit = 0; unit < layout.num_units(); ++unit) {
    const RealSpan weights = store.gather_master(unit, op);
    agree(comm, op, [&] {
      if (!is_writer) return;
      const Range parameters = layout.unit_parameters(unit);
      for (int64_t id = parameters.begin; id < parameters.end; ++id) {
        writer->write(id, sub_span(weights, layout.place(id).flat));
      }
    });
  }
  agree(comm, op, [&] {
    if (is_writer) writer->finish();
  });
}

}  // namespace longspan
