#include "attention/attention_kernel.h"

#include <ATen/Parallel.h>

#include <atomic>

#include "attention/gpu_attention.h"
#include "attention/library_attention.h"
#include "attention/real_types.h"
#include "base/check.h"
#include "device/device.h"

#ifndef _OPENMP
#error "This file needs -fopenmp: without it at::parallel_for runs on one thread, without a word."
#endif

namespace longspan {
namespace {

// The rows of a tensor as the kernels take them: a pointer and the distance between rows.
template <typename Real>
struct RowPointer {
  Real* data;
  int64_t stride;
};

template <typename Real>
RowPointer<Real> row_pointer(const at::Tensor& tensor, const char* name,
                             const std::vector<int64_t>& row_shape) {
  int64_t expected_stride = 1;
  bool fits = tensor.dim() == static_cast<int64_t>(row_shape.size()) + 1;
  for (size_t dim = row_shape.size(); fits && dim > 0; --dim) {
    const auto idx = static_cast<int64_t>(dim);
    fits = tensor.size(idx) == row_shape[dim - 1] &&
           (tensor.stride(idx) == expected_stride || tensor.size(idx) == 1);
    expected_stride *= row_shape[dim - 1];
  }
  LONGSPAN_CHECK(fits, name, " must be rows of ", row_shape.front(),
                 " heads, each contiguous; got ", tensor.sizes(), " with strides ",
                 tensor.strides());
  return {tensor.data_ptr<Real>(), tensor.size(0) > 1 ? tensor.stride(0) : expected_stride};
}

template <typename Real>
Real* contiguous_rows(const at::Tensor& tensor, const char* name,
                      const std::vector<int64_t>& row_shape) {
  LONGSPAN_CHECK(tensor.is_contiguous(), name, " must be contiguous; strides ", tensor.strides());
  return row_pointer<Real>(tensor, name, row_shape).data;
}

struct RowShapes {
  explicit RowShapes(const AttentionShape& shape)
      : query{shape.heads, shape.head_width},
        key{shape.key_heads, shape.head_width},
        row_sum{shape.heads} {}
  std::vector<int64_t> query;
  std::vector<int64_t> key;
  std::vector<int64_t> row_sum;
};

int64_t visible_pairs(const std::vector<AttentionSlice>& slices) {
  int64_t pairs = 0;
  for (const AttentionSlice& slice : slices) {
    pairs += slice.query_rows.size() * slice.key_rows.size();
  }
  return pairs;
}

// Threads take the next item when they are free; each item's result is its own.
template <typename Work, typename Real>
void run_items(const Work& work, int64_t multiply_adds) {
  // Below this, waking other threads costs more than they save.
  constexpr int64_t kParallelMultiplyAdds = 1 << 18;
  const int64_t threads = multiply_adds < kParallelMultiplyAdds
                              ? 1
                              : std::min<int64_t>(at::get_num_threads(), work.num_items());
  std::atomic<int64_t> next = 0;
  const auto take_items = [&](int64_t, int64_t) {
    std::vector<Real> scratch;
    for (int64_t item = next++; item < work.num_items(); item = next++) work.run(item, scratch);
  };
  if (threads <= 1) return take_items(0, 1);
  at::parallel_for(0, threads, 1, take_items);
}

void check_shape(const AttentionShape& shape) {
  LONGSPAN_CHECK(shape.key_heads > 0 && shape.heads % shape.key_heads == 0, shape.heads,
                 " query heads over ", shape.key_heads, " key heads");
}

template <typename Real>
void forward(const AttentionShape& shape, const std::vector<AttentionSlice>& slices,
             const RowStore& queries, const RowStore& keys) {
  const RowShapes rows(shape);
  std::vector<ForwardQueries<Real>> query_sources;
  for (int32_t source = 0; source < queries.num_sources(); ++source) {
    const std::vector<at::Tensor>& tensors = queries.tensors(source);
    const auto q = row_pointer<Real>(tensors.at(0), "q", rows.query);
    query_sources.push_back({q.data, q.stride,
                             contiguous_rows<Real>(tensors.at(1), "o", rows.query),
                             contiguous_rows<Real>(tensors.at(2), "lse", rows.row_sum)});
  }
  std::vector<ForwardKeys<Real>> key_sources;
  for (int32_t source = 0; source < keys.num_sources(); ++source) {
    const auto k = row_pointer<Real>(keys.tensors(source).at(0), "k", rows.key);
    const auto v = row_pointer<Real>(keys.tensors(source).at(1), "v", rows.key);
    key_sources.push_back({k.data, v.data, k.stride, v.stride});
  }
  const BlockedAttentionForward<Real> work(shape, slices, std::move(query_sources),
                                           std::move(key_sources));
  run_items<BlockedAttentionForward<Real>, Real>(
      work, 2 * visible_pairs(slices) * shape.query_row_size());
}

template <typename Real>
void backward(const AttentionShape& shape, const std::vector<AttentionSlice>& slices,
              const RowStore& queries, const RowStore& keys) {
  const RowShapes rows(shape);
  std::vector<BackwardQueries<Real>> query_sources;
  for (int32_t source = 0; source < queries.num_sources(); ++source) {
    const std::vector<at::Tensor>& tensors = queries.tensors(source);
    const auto q = row_pointer<Real>(tensors.at(0), "q", rows.query);
    const auto d_o = row_pointer<Real>(tensors.at(1), "d_o", rows.query);
    query_sources.push_back({q.data, d_o.data, q.stride, d_o.stride,
                             contiguous_rows<Real>(tensors.at(2), "lse", rows.row_sum),
                             contiguous_rows<Real>(tensors.at(3), "delta", rows.row_sum),
                             contiguous_rows<Real>(tensors.at(4), "d_q", rows.query)});
  }
  std::vector<BackwardKeys<Real>> key_sources;
  for (int32_t source = 0; source < keys.num_sources(); ++source) {
    const std::vector<at::Tensor>& tensors = keys.tensors(source);
    const auto k = row_pointer<Real>(tensors.at(0), "k", rows.key);
    const auto v = row_pointer<Real>(tensors.at(1), "v", rows.key);
    key_sources.push_back({k.data, v.data, k.stride, v.stride,
                           contiguous_rows<Real>(tensors.at(2), "d_k", rows.key),
                           contiguous_rows<Real>(tensors.at(3), "d_v", rows.key)});
  }
  const BlockedAttentionBackward<Real> work(shape, slices, std::move(query_sources),
                                            std::move(key_sources));
  run_items<BlockedAttentionBackward<Real>, Real>(
      work, 5 * visible_pairs(slices) * shape.query_row_size());
}

bool on_gpu(const RowStore& queries) {
  return queries.tensors(0).at(0).is_cuda();
}

constexpr int64_t kGpuWidthMax = 256;  // of the plain kernel

}  // namespace

AttentionKernelChoice attention_kernel_for(const AttentionShape& shape, at::ScalarType type,
                                           at::Device device) {
  if (device.is_cpu()) {
    return {text("blocked CPU kernel, ", c10::toString(type)), /*fast=*/true,
            "the device is the CPU"};
  }
  const std::string refusal = flash_attention_refusal(shape, type);
  if (refusal.empty()) {
    const auto refuses_dense = [&](Direction direction) {
      return cudnn_attention_refusal(shape, type, direction);
    };
    const std::string no_forward = refuses_dense(Direction::kForward);
    const std::string no_backward = refuses_dense(Direction::kBackward);
    if (!no_forward.empty()) {
      return {"FlashAttention-2 of libtorch, packed sequences", /*fast=*/true, no_forward};
    }
    return {text("cuDNN for squares and rectangles from 1,024 rows",
                 no_backward.empty() ? "" : " in forward",
                 ", FlashAttention-2 of libtorch for the rest"),
            /*fast=*/true, no_backward.empty() ? "bfloat16 heads of 64 or 128" : no_backward};
  }
  if (shape.head_width > kGpuWidthMax) {
    throw UserError(text("no attention kernel for GPUs runs heads of width ", shape.head_width,
                         " (at most ", kGpuWidthMax, "): train this model on CPU"));
  }
  return {text("plain kernel without tensor cores, ", c10::toString(type)), /*fast=*/false,
          refusal};
}

bool backward_reads_output(const AttentionShape& shape, at::ScalarType type, at::Device device) {
  return device.is_cuda() && flash_attention_refusal(shape, type).empty();
}

int64_t prepare_attention(const AttentionShape& shape, at::ScalarType type, at::Device device,
                          int64_t rows_max, bool split) {
  check_shape(shape);
  if constexpr (kBuiltWithCuda) {
    if (device.is_cuda()) return prepare_gpu_attention(shape, type, device, rows_max, split);
  }
  return 0;
}

void attention_forward(const AttentionShape& shape, const std::vector<AttentionSlice>& slices,
                       const RowStore& queries, const RowStore& keys) {
  check_shape(shape);
  if (slices.empty()) return;
  if constexpr (kBuiltWithCuda) {
    if (on_gpu(queries)) return gpu_attention_forward(shape, slices, queries, keys);
  }
  for_real_type(queries.tensors(0).at(0).scalar_type(),
                [&]<typename Real>() { forward<Real>(shape, slices, queries, keys); });
}

void attention_backward(const AttentionShape& shape, const std::vector<AttentionSlice>& slices,
                        const RowStore& queries, const RowStore& keys) {
  check_shape(shape);
  if (slices.empty()) return;
  if constexpr (kBuiltWithCuda) {
    if (on_gpu(queries)) return gpu_attention_backward(shape, slices, queries, keys);
  }
  for_real_type(queries.tensors(0).at(0).scalar_type(),
                [&]<typename Real>() { backward<Real>(shape, slices, queries, keys); });
}

}  // namespace longspan
