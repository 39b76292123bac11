// Hyper-connections (mHC) as operations: reading a block's input from the residual streams, writing
// its output back, leaving the streams at the end.
//
//   HyperRead site = hyper_read(access, streams_TNC, ids.attn_hyper, options);
//   at::Tensor y_TC = block(norm(site.x_in));                    // attention or feed-forward
//   streams_TNC = hyper_write(streams_TNC, y_TC, site.write, site.mix);
//   at::Tensor x_TC = streams_mean(streams_TNC);                 // after the last layer
//
// The formulas stand in kernels/cpu/hyper_connection.h. Legend: T tokens, N streams, C model width.
// Parameters: fn [N (N + 2), N C], base [N (N + 2)], scale [3].
// What is kept: hyper_read the streams and, a token, N (N + 2) + 1 numbers; hyper_write the
// streams, y and the maps; streams_mean nothing. The Sinkhorn normalisations are played again in
// backward. Gradients of fn, base and scale are sums over tokens in an order that does not depend
// on the number of threads.
// Thread contract: as ops.h.
#pragma once

#include <ATen/core/Tensor.h>

#include "layers/parameter_access.h"

namespace longspan {

struct HyperParameters {
  ParameterId fn = -1;
  ParameterId base = -1;
  ParameterId scale = -1;
};

struct HyperOptions {
  double norm_epsilon = 1e-5;  // the model's rms_norm_eps
  double epsilon = 1e-6;       // hc_eps
  int64_t sinkhorn_rounds = 20;
};

struct HyperRead {
  at::Tensor x_in;   // [T, C]
  at::Tensor write;  // [T, N]
  at::Tensor mix;    // [T, N, N], row: from stream, column: to stream
};

HyperRead hyper_read(const ParameterAccess& access, const at::Tensor& streams_TNC,
                     const HyperParameters& parameters, const HyperOptions& options);

// The maps must come from hyper_read of the same streams.
at::Tensor hyper_write(const at::Tensor& streams_TNC, const at::Tensor& y_TC,
                       const at::Tensor& write_TN, const at::Tensor& mix_TNN);

at::Tensor streams_mean(const at::Tensor& streams_TNC);

}  // namespace longspan
