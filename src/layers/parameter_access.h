// How a layer reaches its weights and where its weight gradients go.
//
// Why: weights are sharded and gathered ahead of use, and dropped after it. A layer therefore never
// keeps a weight: it asks for it in forward and again in backward, and adds the weight gradient, in
// the accumulation type, where the store says. Model code thus knows nothing of ranks or shards.
//
//   const at::Tensor& w = access.weights->weight(id);          // [out, in], valid while the unit
//   is gathered access.gradients->gradient(id).addmm_(dy.t(), x);          // fp32 (fp64 in float64
//   runs) accumulator
//
// ParameterId is the index into ModelSpec's parameter table (spec/model_spec.h).
// Thread contract: a store belongs to one rank; it is used from that rank's thread (and, on CUDA,
// from the autograd thread of its device while that rank's thread waits in grad()).
#pragma once

#include <cstdint>

namespace at {
class Tensor;
}

namespace longspan {

using ParameterId = int64_t;

class WeightSource {
 public:
  virtual ~WeightSource() = default;
  // InternalError if the parameter's unit is not gathered now.
  virtual const at::Tensor& weight(ParameterId id) const = 0;
};

class GradientSink {
 public:
  virtual ~GradientSink() = default;
  // The full-size accumulator of the parameter for the band in work; InternalError if it is not
  // open now.
  virtual at::Tensor& gradient(ParameterId id) = 0;
};

struct ParameterAccess {
  const WeightSource* weights = nullptr;
  GradientSink* gradients = nullptr;
};

}  // namespace longspan
