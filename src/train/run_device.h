// The device and the types of a run, as its configuration says.
//
//   const at::TensorOptions tensors = run_tensors(config);        // of activations
//   ParameterStore store = make_parameter_store(table, comm, store_options(config));
//
// UserError if there is no such device here. Pure functions.
#pragma once

#include <ATen/core/Tensor.h>

#include "config/run_config.h"
#include "device/device.h"
#include "train/parameter_store.h"

namespace longspan {

inline at::TensorOptions run_tensors(const RunConfig& config) {
  const std::string& dtype = config.model.dtype;
  const at::ScalarType type = dtype == "float64"    ? at::kDouble
                              : dtype == "bfloat16" ? at::kBFloat16
                                                    : at::kFloat;
  return at::TensorOptions(type).device(device_from_name(config.layout.device));
}

inline ParameterStoreOptions store_options(const RunConfig& config) {
  return {.shard_group = config.layout.shard_group,
          .expert_group = config.layout.expert_group,
          .float64 = config.model.dtype == "float64",
          .bfloat16 = config.model.dtype == "bfloat16",
          .device = device_from_name(config.layout.device)};
}

}  // namespace longspan
