// The device and the types of a rank of a run, as its configuration says.
//
//   const at::TensorOptions tensors = run_tensors(config, comm.rank());        // of activations
//   ParameterStore store = make_parameter_store(table, comm, store_options(config, comm.rank()));
//
// UserError if there is no such device here. Pure functions.
#pragma once

#include <ATen/core/Tensor.h>

#include "config/run_config.h"
#include "device/device.h"
#include "train/parameter_store.h"

namespace longspan {

inline at::Device run_device(const RunConfig& config, int rank) {
  return device_of_rank(device_from_name(config.layout.device), rank);
}

inline at::TensorOptions run_tensors(const RunConfig& config, int rank) {
  const std::string& dtype = config.model.dtype;
  const at::ScalarType type = dtype == "float64"    ? at::kDouble
                              : dtype == "bfloat16" ? at::kBFloat16
                                                    : at::kFloat;
  return at::TensorOptions(type).device(run_device(config, rank));
}

inline ParameterStoreOptions store_options(const RunConfig& config, int rank) {
  return {.shard_group = config.layout.shard_group,
          .expert_group = config.layout.expert_group,
          .float64 = config.model.dtype == "float64",
          .bfloat16 = config.model.dtype == "bfloat16",
          .device = run_device(config, rank)};
}

}  // namespace longspan
