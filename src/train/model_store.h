// A rank's ParameterStore for a model, filled with the random weights that a seed gives.
//
//   ParameterStore store = make_parameter_store(table, comm, {.shard_group = 2});
//   fill_random(table, seed, store, comm);          // or load_hf_weights, load_state:
//   store_state.h
//
// Every rank fills its own shard; the values do not depend on the number of ranks. Collective.
#pragma once

#include <cstdint>

#include "comm/communicator.h"
#include "spec/parameter_table.h"
#include "train/parameter_store.h"

namespace longspan {

ParameterStore make_parameter_store(const ParameterTable& table, Communicator& comm,
                                    const ParameterStoreOptions& options);

void fill_random(const ParameterTable& table, uint64_t seed, ParameterStore& store,
                 Communicator& comm);

}  // namespace longspan
