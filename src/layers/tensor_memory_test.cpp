// Kept tensor memory: reuse, the promise about its size, threads.
#include "layers/tensor_memory.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <thread>

#include "base/random.h"

namespace longspan {
namespace {

constexpr int64_t kMebibyte = int64_t{1} << 20;

at::Tensor bytes(int64_t count) {
  return at::empty({count}, at::kByte);
}

TEST(TensorMemory, ABlockIsUsedAgain) {
  keep_tensor_memory();
  keep_tensor_memory();
  at::Tensor tensor = bytes(8 * kMebibyte);
  const void* address = tensor.const_data_ptr();
  const int64_t mapped = tensor_memory_use().mapped_bytes;
  EXPECT_GE(mapped, 8 * kMebibyte);
  tensor.reset();
  EXPECT_EQ(tensor_memory_use().mapped_bytes, mapped);
  tensor = bytes(7 * kMebibyte);
  EXPECT_EQ(tensor.const_data_ptr(), address);
  // Too small for a block of 8 MiB.
  tensor.reset();
  tensor = bytes(5 * kMebibyte);
  EXPECT_NE(tensor.const_data_ptr(), address);
  EXPECT_EQ(bytes(0).numel(), 0);
}

TEST(TensorMemory, KeepsItsPromiseWithRandomSizes) {
  keep_tensor_memory();
  RandomStream random(1, "tensor memory");
  std::vector<at::Tensor> tensors(20);
  std::vector<uint8_t> marks(20, 0);
  for (int step = 0; step < 4000; ++step) {
    const auto slot = static_cast<size_t>(random.below(tensors.size()));
    if (tensors[slot].defined()) {
      // Nobody else wrote to it.
      const int64_t last = tensors[slot].numel() - 1;
      ASSERT_EQ(tensors[slot].const_data_ptr<uint8_t>()[0], marks[slot]);
      ASSERT_EQ(tensors[slot].const_data_ptr<uint8_t>()[last], marks[slot]);
      tensors[slot].reset();
    } else {
      tensors[slot] = bytes(random.between(1, 12 * kMebibyte));
      ASSERT_EQ(reinterpret_cast<uintptr_t>(tensors[slot].const_data_ptr()) % 64, 0u);
      marks[slot] = static_cast<uint8_t>(step);
      tensors[slot].mutable_data_ptr<uint8_t>()[0] = marks[slot];
      tensors[slot].mutable_data_ptr<uint8_t>()[tensors[slot].numel() - 1] = marks[slot];
    }
    const TensorMemoryUse use = tensor_memory_use();
    ASSERT_LE(use.used_bytes, use.mapped_bytes);
    ASSERT_LE(use.mapped_bytes, use.used_bytes_peak + use.used_bytes_peak / 8 + 64 * kMebibyte);
  }
  tensors.clear();
  EXPECT_EQ(tensor_memory_use().used_bytes, 0);
}

TEST(TensorMemory, ThreadsShareIt) {
  keep_tensor_memory();
  std::vector<std::thread> threads;
  for (uint64_t seed = 0; seed < 4; ++seed) {
    threads.emplace_back([seed] {
      RandomStream random(seed, "tensor memory threads");
      for (int step = 0; step < 300; ++step) {
        const at::Tensor tensor =
            at::full({random.between(1, kMebibyte)}, static_cast<int64_t>(seed), at::kByte);
        std::this_thread::yield();
        EXPECT_TRUE(tensor.eq(static_cast<int64_t>(seed)).all().item<bool>());
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(tensor_memory_use().used_bytes, 0);
}

}  // namespace
}  // namespace longspan
