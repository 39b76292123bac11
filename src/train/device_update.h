// The optimizer's arithmetic on a GPU, on flat arrays (kernels/cuda/adamw.h on tensors).
//
//   const double squares = device_squared_norm({slice, ...});            // the host waits for it
//   device_update(step, {gradient, weight, m, v, rounded}, {begin, end});  // queued
//
// Private to train/; builds without CUDA never call it.
#pragma once

#include <ATen/core/Tensor.h>

#include <vector>

#include "base/range.h"
#include "kernels/cpu/adamw.h"

namespace longspan {

double device_squared_norm(const std::vector<at::Tensor>& slices);

struct DeviceUpdate {
  at::Tensor gradient;
  at::Tensor weight;
  at::Tensor first_moment;
  at::Tensor second_moment;
  at::Tensor rounded;  // bfloat16; undefined if products read the weight itself
};

void device_update(const AdamWStep& step, const DeviceUpdate& arrays, Range elements);

}  // namespace longspan
