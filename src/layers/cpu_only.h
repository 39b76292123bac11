// Refuses tensors on a GPU in operations that have no GPU kernel yet.
//
//   require_cpu(streams, "hyper-connections");
//
// Why a UserError: the choice of the device is the user's, and so is its mending.
// Pure function.
#pragma once

#include <ATen/core/Tensor.h>

#include <string_view>

#include "base/error.h"

namespace longspan {

inline void require_cpu(const at::Tensor& tensor, std::string_view operation) {
  if (tensor.is_cpu()) return;
  throw UserError(text(operation, " run on the CPU only, but were called with tensors on ",
                       tensor.device().str(), "; set layout.device = \"cpu\""));
}

}  // namespace longspan
