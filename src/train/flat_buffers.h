// Flat arrays that are taken and given back many times a step: gathered weights, open gradients.
//
// Layers are alike, so a few sizes come again and again. A buffer that was given back is kept and
// handed out for the next request of its size, so a step allocates nothing after the first one and
// the bytes held are the peak.
//
//   at::Tensor flat = buffers.take(elements, at::kFloat);       // content undefined
//   buffers.give_back(std::move(flat));
//
// An object belongs to one rank's thread.
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>

#include <map>
#include <utility>
#include <vector>

namespace longspan {

class FlatBuffers {
 public:
  explicit FlatBuffers(at::Device device) : device_(device) {}

  at::Tensor take(int64_t elements, at::ScalarType type) {
    std::vector<at::Tensor>& free = free_[{type, elements}];
    if (free.empty()) {
      free.push_back(at::empty({elements}, at::TensorOptions(type).device(device_)));
      held_bytes_ += static_cast<int64_t>(free.back().nbytes());
    }
    at::Tensor buffer = std::move(free.back());
    free.pop_back();
    return buffer;
  }

  void give_back(at::Tensor buffer) {
    const std::pair<at::ScalarType, int64_t> kind{buffer.scalar_type(), buffer.numel()};
    free_[kind].push_back(std::move(buffer));
  }

  int64_t held_bytes() const { return held_bytes_; }

 private:
  at::Device device_;
  std::map<std::pair<at::ScalarType, int64_t>, std::vector<at::Tensor>> free_;
  int64_t held_bytes_ = 0;
};

}  // namespace longspan
