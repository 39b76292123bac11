// Private to layers/: hyper_connection.h and router.h on a GPU, on the kernels of kernels/cuda and
// cuBLAS. In builds without CUDA nothing here is called, nor defined.
//
// Streams and rows are of the run's type; maps, logits, scores and weights of its accumulation
// type, in which products with the maps' and the router's matrices are summed.
// Shapes are checked by the callers. Work is queued on the calling thread's stream; nothing waits.
#pragma once

#include "kernels/cpu/hyper_connection.h"
#include "kernels/cpu/router.h"
#include "layers/hyper_connection.h"
#include "layers/router.h"

namespace longspan {

// UserError if there is no kernel for the shape.
void require_hyper_kernels(const HyperShape& shape);
void require_router_kernels(const RouterShape& shape);

// What hyper_read gives, and what its backward needs besides.
struct HyperReadResult {
  HyperRead read;
  at::Tensor raw;          // [T, N (N + 2)]
  at::Tensor inverse_rms;  // [T]
};

HyperReadResult cuda_hyper_read(const ParameterAccess& access, const HyperParameters& parameters,
                                const HyperShape& shape, const at::Tensor& streams);
// The gradient of the streams; adds those of the parameters. `gradients`: of x_in, write, mix.
at::Tensor cuda_hyper_read_backward(const ParameterAccess& access,
                                    const HyperParameters& parameters, const HyperShape& shape,
                                    const at::Tensor& streams, const HyperReadResult& saved,
                                    const HyperRead& gradients);

struct HyperWriteTensors {
  at::Tensor streams;
  at::Tensor y;
  at::Tensor write;
  at::Tensor mix;
};
void cuda_hyper_write(const HyperShape& shape, const HyperWriteTensors& inputs,
                      const at::Tensor& streams_out);
void cuda_hyper_write_backward(const HyperShape& shape, const HyperWriteTensors& inputs,
                               const at::Tensor& streams_out_gradient,
                               const HyperWriteTensors& gradients);

at::Tensor cuda_router_logits(const at::Tensor& x, const at::Tensor& weight);
// `bias` may be undefined.
void cuda_router_choose(const RouterShape& shape, const at::Tensor& logits, const at::Tensor& bias,
                        const at::Tensor& ids);
void cuda_router_weights(const RouterShape& shape, const at::Tensor& logits, const at::Tensor& ids,
                         const at::Tensor& scores, const at::Tensor& weights);
// dlogits -> dx, in x's type; adds the gradient of the router's weight.
struct RouterChoice {
  at::Tensor ids;
  at::Tensor scores;
  at::Tensor weights;
};
at::Tensor cuda_router_backward(const ParameterAccess& access, ParameterId weight,
                                const RouterShape& shape, const at::Tensor& x,
                                const RouterChoice& choice, const at::Tensor& dweights);

}  // namespace longspan
