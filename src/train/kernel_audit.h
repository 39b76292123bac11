// Which kernel runs each operation of a model on the device of a run, and why: printed at the start
// and kept in the log, so that nobody learns of a slow path from the clock.
//
//   const std::vector<KernelUse> uses = kernel_audit(spec, tensors);
//   require_fast(uses, config.layout.allow_slow);      // UserError naming what is slow, and why
//   for (const KernelUse& use : uses) print(use.line());
//
// Layers of a kind are alike, so each operation stands here once, with its layers. Pure functions.
#pragma once

#include <ATen/core/Tensor.h>

#include <string>
#include <vector>

#include "spec/model_spec.h"

namespace longspan {

struct KernelUse {
  std::string operation;  // a word that layout.allow_slow may hold
  std::string layers;     // where it is used
  std::string kernel;
  std::string reason;
  bool fast = true;

  std::string line() const;
};

// UserError if an operation has no kernel there at all.
std::vector<KernelUse> kernel_audit(const ModelSpec& spec, const at::TensorOptions& tensors);

void require_fast(const std::vector<KernelUse>& uses, const std::vector<std::string>& allow_slow);

}  // namespace longspan
