// Attention on tensors; kernels/cpu/attention_kernels_test.cpp tests the arithmetic.
#include "attention/attention_kernel.h"

#include <ATen/Parallel.h>
#include <ATen/ops/full.h>
#include <ATen/ops/zeros.h>
#include <gtest/gtest.h>

#include <limits>

#include "attention/test_arrays.h"
#include "kernels/cpu/reference_attention.h"

namespace longspan {
namespace {

at::Tensor empty_sums(std::vector<int64_t> sizes) {
  return at::full(sizes, -std::numeric_limits<double>::infinity(), at::kFloat);
}

RowStore store_of(std::vector<at::Tensor> tensors) {
  RowStore store;
  const int64_t rows = tensors.front().size(0);
  store.add({0, rows}, std::move(tensors));
  return store;
}

TEST(AttentionKernel, ReadsStridedRowsOfSeveralSources) {
  const AttentionShape shape{.heads = 4, .key_heads = 2, .head_width = 8, .scale = 0.3};
  RandomStream random(3, "strided rows");
  // Queries, keys and values side by side in one tensor, as a fused projection leaves them.
  const at::Tensor fused = tensor_of(random_rows<double>(random, 90 * 64), {90, 8, 8});
  const at::Tensor q = fused.narrow(1, 0, 4);
  const at::Tensor k = fused.narrow(1, 4, 2);
  const at::Tensor v = fused.narrow(1, 6, 2);
  const at::Tensor o = at::zeros({90, 4, 8}, at::kDouble);
  const at::Tensor lse = empty_sums({90, 4}).to(at::kDouble);
  RowStore keys;
  keys.add({0, 30}, {k.narrow(0, 0, 30), v.narrow(0, 0, 30)});
  keys.add({30, 90}, {k.narrow(0, 30, 60), v.narrow(0, 30, 60)});
  attention_forward(shape, {{0, 0, 1, {0, 90}, {0, 60}, -30}, {0, 0, 0, {0, 90}, {0, 30}, 0}},
                    store_of({q, o, lse}), keys);
  std::vector<double> expected(90 * 32);
  std::vector<double> expected_lse(90 * 4);
  reference_attention_forward<double>({90, 90, 0}, shape, values_of<double>(q).data(),
                                      values_of<double>(k).data(), values_of<double>(v).data(),
                                      expected.data(), expected_lse.data());
  EXPECT_LE(relative_error(values_of<double>(o), expected), 1e-13);
  EXPECT_LE(relative_error(values_of<double>(lse), expected_lse), 1e-13);
}

TEST(AttentionKernel, RowsWithoutKeysAreEmpty) {
  const AttentionShape shape{.heads = 2, .key_heads = 1, .head_width = 4, .scale = 0.5};
  RandomStream random(7, "empty rows");
  const auto rows = [&](std::vector<int64_t> sizes) {
    return tensor_of(random_rows<float>(random, sizes[0] * sizes[1] * sizes[2]), sizes);
  };
  const at::Tensor o = at::zeros({5, 2, 4}, at::kFloat);
  const at::Tensor lse = empty_sums({5, 2});
  attention_forward(shape, {{0, 0, 0, {0, 5}, {0, 9}, -3}, {0, 0, 0, {2, 2}, {0, 9}, 0}},
                    store_of({rows({5, 2, 4}), o, lse}),
                    store_of({rows({9, 1, 4}), rows({9, 1, 4})}));
  for (int64_t row = 0; row < 5; ++row) {
    for (int64_t head = 0; head < 2; ++head) {
      const float value = lse.const_data_ptr<float>()[row * 2 + head];
      EXPECT_EQ(std::isfinite(value), row >= 3) << row;
      EXPECT_EQ(o.const_data_ptr<float>()[(row * 2 + head) * 4] == 0, row < 3) << row;
    }
  }
}

TEST(AttentionKernel, SameBitsWhateverTheThreads) {
  const AttentionShape shape{.heads = 4, .key_heads = 2, .head_width = 16, .scale = 0.25};
  RandomStream random(11, "threads");
  const int64_t rows = 700;
  const at::Tensor q = tensor_of(random_rows<float>(random, rows * 64), {rows, 4, 16});
  const at::Tensor k = tensor_of(random_rows<float>(random, rows * 32), {rows, 2, 16});
  const at::Tensor v = tensor_of(random_rows<float>(random, rows * 32), {rows, 2, 16});
  const std::vector<AttentionSlice> slices = {{0, 0, 0, {0, 600}, {0, 300}, 0},
                                              {0, 0, 0, {300, 600}, {300, 600}, 0},
                                              {1, 0, 0, {600, 700}, {600, 700}, 0}};
  const auto run = [&](int threads) {
    at::set_num_threads(threads);
    const at::Tensor o = at::zeros({rows, 4, 16}, at::kFloat);
    const at::Tensor lse = empty_sums({rows, 4});
    const at::Tensor d_q = at::zeros({rows, 4, 16}, at::kFloat);
    const at::Tensor d_k = at::zeros({rows, 2, 16}, at::kFloat);
    const at::Tensor d_v = at::zeros({rows, 2, 16}, at::kFloat);
    attention_forward(shape, slices, store_of({q, o, lse}), store_of({k, v}));
    attention_backward(shape, slices, store_of({q, q, lse, lse, d_q}), store_of({k, v, d_k, d_v}));
    std::vector<double> all;
    for (const at::Tensor& tensor : {o, lse, d_q, d_k, d_v}) {
      const std::vector<double> values = values_of<float>(tensor);
      all.insert(all.end(), values.begin(), values.end());
    }
    return all;
  };
  const std::vector<double> one = run(1);
  const std::vector<double> three = run(3);
  at::set_num_threads(1);
  EXPECT_EQ(one, three);
}

TEST(AttentionKernel, RefusesOtherTypesAndShapes) {
  const AttentionShape shape{.heads = 1, .key_heads = 1, .head_width = 2, .scale = 1};
  const std::vector<AttentionSlice> slices = {{0, 0, 0, {0, 3}, {0, 3}, 0}};
  const auto rows = [](at::ScalarType type, std::vector<int64_t> sizes) {
    return at::zeros(sizes, type);
  };
  const auto launch = [&](at::ScalarType type, int64_t width) {
    attention_forward(
        shape, slices,
        store_of({rows(type, {3, 1, width}), rows(type, {3, 1, 2}), rows(type, {3, 1})}),
        store_of({rows(type, {3, 1, 2}), rows(type, {3, 1, 2})}));
  };
  EXPECT_NO_THROW(launch(at::kFloat, 2));
  EXPECT_THROW(launch(at::kFloat, 4), InternalError);
  EXPECT_THROW(launch(at::kBFloat16, 2), InternalError);
}

}  // namespace
}  // namespace longspan
