#include "train/model_store.h"

#include "model/initialize.h"
#include "train/store_state.h"

namespace longspan {

ParameterStore make_parameter_store(const ParameterTable& table, Communicator& comm,
                                    const ParameterStoreOptions& options) {
  return ParameterStore(table.parameters(), comm, options);
}

void fill_random(const ParameterTable& table, uint64_t seed, ParameterStore& store,
                 Communicator& comm) {
  fill_weights(store, comm, "random weights",
               [&](ParameterId id, Range elements, const RealSpan& destination) {
                 initialize_parameter(table.parameters()[static_cast<size_t>(id)], seed, elements,
                                      destination);
               });
}

}  // namespace longspan
