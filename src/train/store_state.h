// What goes into a ParameterStore before training, and what comes out for checkpoints and exports.
//
//   fill_weights(store, comm, op, [&](ParameterId id, Range elements, const RealSpan& to) { ... });
//   load_hf_weights(store, comm, "models/tiny");           // this rank's slices only
//
//   request.arrays = state_arrays(store);                  // checkpoint/train_state.h
//   load_state(store, comm, saved);                        // any mesh; sets updates() too
//
//   export_weights(store, comm, spec, "out", options);     // rank 0 writes, unit after unit
//
// Rank layouts pad the flat arrays; what is saved is without padding. All functions but
// state_arrays are collective: an error of one rank is the UserError of all. Each rank calls them
// on its own thread with its own store.
#pragma once

#include <filesystem>
#include <functional>
#include <string_view>
#include <vector>

#include "base/range.h"
#include "base/real_span.h"
#include "checkpoint/hf_model.h"
#include "checkpoint/train_state.h"
#include "comm/communicator.h"
#include "spec/model_spec.h"
#include "train/parameter_store.h"

namespace longspan {

// Asked for every slice of this rank's weight shards: elements of a parameter, row-major. It must
// give the same values for the same elements on every rank.
using WeightFiller = std::function<void(ParameterId, Range elements, const RealSpan& destination)>;

void fill_weights(ParameterStore& store, Communicator& comm, std::string_view op,
                  const WeightFiller& filler);
void load_hf_weights(ParameterStore& store, Communicator& comm,
                     const std::filesystem::path& folder);

// Views of what this rank owns: weights and both moments of every unit.
std::vector<StateArray> state_arrays(ParameterStore& store);
void load_state(ParameterStore& store, Communicator& comm, SavedState& saved);

// `store` holds the parameters of ParameterTable(spec).
void export_weights(ParameterStore& store, Communicator& comm, const ModelSpec& spec,
                    const std::filesystem::path& to, const HfExportOptions& options);

}  // namespace longspan
