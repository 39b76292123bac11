#include "attention/gpu_attention.h"

#include <ATen/ops/empty_like.h>
#include <ATen/ops/zeros.h>

#include "attention/call_rows.h"
#include "attention/library_attention.h"
#include "attention/part_sums.h"
#include "device/device.h"
#include "device/device_types.h"
#include "device/side_queues.h"
#include "kernels/cuda/attention_rows.h"
#include "kernels/cuda/row_pieces.h"
#include "kernels/cuda/slice_attention.h"
#include "kernels/packed_tiles.h"

namespace longspan {
namespace {

using cuda::Accumulate;

// A call and the rows that it reads; `d_o`, `o` and `lse` in backward alone.
struct CallInputs {
  const PackedTiles* tiles = nullptr;
  at::Tensor q;
  at::Tensor k;
  at::Tensor v;
  at::Tensor query_ends;  // of packed sequences
  at::Tensor key_ends;
  at::Tensor d_o;
  at::Tensor o;
  at::Tensor lse;
};

CallInputs forward_inputs(const PackedTiles& tiles, const RowStore& queries, const RowStore& keys,
                          CallRows* rows) {
  CallInputs in{.tiles = &tiles};
  in.q = rows->packed(queries, tiles.queries, 0);
  in.k = rows->packed(keys, tiles.keys, 0);
  in.v = rows->packed(keys, tiles.keys, 1);
  if (!tiles.dense) {
    in.query_ends = upload(std::span<const int32_t>(tiles.queries.ends), in.q.device());
    in.key_ends = upload(std::span<const int32_t>(tiles.keys.ends), in.q.device());
  }
  return in;
}

CallInputs backward_inputs(const PackedTiles& tiles, const RowStore& queries, const RowStore& keys,
                           CallRows* rows) {
  CallInputs in = forward_inputs(tiles, queries, keys, rows);
  in.d_o = rows->packed(queries, tiles.queries, 1);
  in.lse = rows->head_first(queries, tiles.queries, 2, tiles.dense);
  in.o = rows->packed(queries, tiles.queries, 5);
  return in;
}

FlashInputs flash_inputs(const AttentionShape& shape, const CallInputs& in) {
  return {.q = in.q,
          .k = in.k,
          .v = in.v,
          .query_ends = in.query_ends,
          .key_ends = in.key_ends,
          .query_rows_max = in.tiles->queries.rows_max,
          .key_rows_max = in.tiles->keys.rows_max,
          .causal = in.tiles->causal,
          .scale = shape.scale};
}

// [tiles, rows of a tile, ...] of packed rows.
at::Tensor by_tile(const at::Tensor& rows, const Packing& packing) {
  std::vector<int64_t> sizes = rows.sizes().vec();
  sizes.front() = packing.rows_max;
  sizes.insert(sizes.begin(), rows.size(0) / packing.rows_max);
  return rows.view(sizes);
}

DenseInputs dense_inputs(const AttentionShape& shape, const CallInputs& in) {
  return {.q = by_tile(in.q, in.tiles->queries),
          .k = by_tile(in.k, in.tiles->keys),
          .v = by_tile(in.v, in.tiles->keys),
          .causal = in.tiles->causal,
          .scale = shape.scale};
}

// Where results have the type of the inputs, rows have one part each: what computes them stays
// whole.
std::vector<PackedTiles> calls_for(const AttentionShape& shape,
                                   const std::vector<AttentionSlice>& slices,
                                   const RowStore& queries, Direction direction) {
  const at::ScalarType type = queries.tensors(0).at(0).scalar_type();
  const size_t result_idx = direction == Direction::kForward ? 1 : 4;
  PackingOptions options;
  options.dense = cudnn_attention_refusal(shape, type, direction).empty();
  for (int32_t source = 0; source < queries.num_sources(); ++source) {
    const bool sums = queries.tensors(source).at(result_idx).scalar_type() != type;
    if (!sums) options.whole_sources.push_back(source);
    options.split = options.split || (options.dense && sums);
  }
  return packed_tiles(slices, options);
}

// What a call of the library gives, for each call in order; computed side by side.
template <typename Output, typename Compute>
std::vector<Output> compute_calls(const std::vector<CallInputs>& calls, const Compute& compute) {
  std::vector<Output> outputs;
  if (calls.size() == 1) {
    outputs.push_back(compute(calls.front()));
    return outputs;
  }
  SideQueues queues(calls.front().q.device());
  for (const CallInputs& call : calls) {
    queues.run([&] { outputs.push_back(compute(call)); });
  }
  queues.join();
  return outputs;
}

// Of rows that are copied for calls side by side.
constexpr int64_t kCopiedBytes = int64_t{1} << 30;

// All calls: inputs, what the library gives, what becomes of it; as many side by side as copies of
// their rows may take memory.
template <typename Output, typename Inputs, typename Compute, typename Add>
void run_calls(const AttentionShape& shape, const std::vector<PackedTiles>& calls,
               const Inputs& inputs_of, const Compute& compute, const Add& add) {
  for (size_t next = 0; next < calls.size();) {
    CallRows rows(shape);
    std::vector<CallInputs> inputs;
    do {
      inputs.push_back(inputs_of(calls[next], &rows));
      next += 1;
    } while (next < calls.size() && rows.copied_bytes() < kCopiedBytes);
    rows.copy();
    const std::vector<Output> outputs = compute_calls<Output>(inputs, compute);
    PartSums sums(shape);
    for (size_t idx = 0; idx < inputs.size(); ++idx) add(*inputs[idx].tiles, outputs[idx], &sums);
    sums.finish();
  }
}

void run_forward(const AttentionShape& shape, const std::vector<PackedTiles>& calls,
                 const RowStore& queries, const RowStore& keys) {
  run_calls<LibraryOutput>(
      shape, calls,
      [&](const PackedTiles& call, CallRows* rows) {
        return forward_inputs(call, queries, keys, rows);
      },
      [&](const CallInputs& in) {
        return in.tiles->dense ? cudnn_forward(dense_inputs(shape, in))
                               : flash_forward(flash_inputs(shape, in));
      },
      [&](const PackedTiles& call, const LibraryOutput& out, PartSums* sums) {
        sums->merge(call.queries, out.o, out.lse, call.dense, queries);
      });
}

LibraryGradients backward_of(const AttentionShape& shape, const CallInputs& in) {
  if (!in.tiles->dense) return flash_backward(flash_inputs(shape, in), in.d_o, in.o, in.lse);
  return cudnn_backward(dense_inputs(shape, in), by_tile(in.d_o, in.tiles->queries),
                        by_tile(in.o, in.tiles->queries), in.lse);
}

void run_backward(const AttentionShape& shape, const std::vector<PackedTiles>& calls,
                  const RowStore& queries, const RowStore& keys) {
  run_calls<LibraryGradients>(
      shape, calls,
      [&](const PackedTiles& call, CallRows* rows) {
        return backward_inputs(call, queries, keys, rows);
      },
      [&](const CallInputs& in) { return backward_of(shape, in); },
      [&](const PackedTiles& call, const LibraryGradients& gradients, PartSums* sums) {
        sums->add(call.queries, gradients.d_q, queries, 4);
        sums->add(call.keys, gradients.d_k, keys, 2);
        sums->add(call.keys, gradients.d_v, keys, 3);
      });
}

// ---- the plain kernel

template <typename T>
struct StridedRows {
  const T* data;
  int64_t stride;
};

template <typename T>
StridedRows<T> strided_rows(const at::Tensor& rows) {
  const int64_t row_size = rows.size(1) * rows.size(2);
  LONGSPAN_CHECK(rows.stride(2) == 1 && (rows.stride(1) == rows.size(2) || rows.size(1) == 1),
                 "rows ", rows.sizes(), " with strides ", rows.strides());
  return {static_cast<const T*>(rows.const_data_ptr()),
          rows.size(0) > 1 ? rows.stride(0) : row_size};
}

PackedPiece piece_of(int32_t source, const Range& rows) {
  return {source, rows, 0};
}

template <typename T>
cuda::SliceInputs<T> slice_inputs(const AttentionSlice& slice, const RowStore& queries,
                                  const RowStore& keys) {
  const auto q =
      strided_rows<T>(rows_of(queries, piece_of(slice.query_source, slice.query_rows), 0));
  const auto k = strided_rows<T>(rows_of(keys, piece_of(slice.key_source, slice.key_rows), 0));
  const auto v = strided_rows<T>(rows_of(keys, piece_of(slice.key_source, slice.key_rows), 1));
  return {q.data, k.data, v.data, q.stride, k.stride, v.stride};
}

AttentionTile tile_of(const AttentionSlice& slice) {
  return {slice.query_rows.size(), slice.key_rows.size(), slice.diagonal};
}

template <typename T>
void slice_forward(const AttentionShape& shape, const AttentionSlice& slice,
                   const RowStore& queries, const RowStore& keys) {
  const PackedPiece rows = piece_of(slice.query_source, slice.query_rows);
  cuda::slice_attention_forward<T>(tile_of(slice), shape, slice_inputs<T>(slice, queries, keys),
                                   device_data<Accumulate<T>>(rows_of(queries, rows, 1)),
                                   device_data<Accumulate<T>>(rows_of(queries, rows, 2)),
                                   current_stream());
}

template <typename T>
void slice_backward(const AttentionShape& shape, const AttentionSlice& slice,
                    const RowStore& queries, const RowStore& keys) {
  using A = Accumulate<T>;
  const PackedPiece rows = piece_of(slice.query_source, slice.query_rows);
  const PackedPiece key_rows = piece_of(slice.key_source, slice.key_rows);
  const auto d_o = strided_rows<T>(rows_of(queries, rows, 1));
  cuda::slice_attention_backward<T>(tile_of(slice), shape, slice_inputs<T>(slice, queries, keys),
                                    {.d_o = d_o.data,
                                     .d_o_stride = d_o.stride,
                                     .lse = device_data<const A>(rows_of(queries, rows, 2)),
                                     .delta = device_data<const A>(rows_of(queries, rows, 3)),
                                     .d_q = device_data<A>(rows_of(queries, rows, 4)),
                                     .d_k = device_data<A>(rows_of(keys, key_rows, 2)),
                                     .d_v = device_data<A>(rows_of(keys, key_rows, 3))},
                                    current_stream());
}

}  // namespace

void gpu_attention_forward(const AttentionShape& shape, const std::vector<AttentionSlice>& slices,
                           const RowStore& queries, const RowStore& keys) {
  const at::ScalarType type = queries.tensors(0).at(0).scalar_type();
  if (flash_attention_refusal(shape, type).empty()) {
    return run_forward(shape, calls_for(shape, slices, queries, Direction::kForward), queries,
                       keys);
  }
  for_device_type(type, [&]<typename T>() {
    for (const AttentionSlice& slice : slices) slice_forward<T>(shape, slice, queries, keys);
  });
}

void gpu_attention_backward(const AttentionShape& shape, const std::vector<AttentionSlice>& slices,
                            const RowStore& queries, const RowStore& keys) {
  const at::ScalarType type = queries.tensors(0).at(0).scalar_type();
  if (flash_attention_refusal(shape, type).empty()) {
    return run_backward(shape, calls_for(shape, slices, queries, Direction::kBackward), queries,
                        keys);
  }
  for_device_type(type, [&]<typename T>() {
    for (const AttentionSlice& slice : slices) slice_backward<T>(shape, slice, queries, keys);
  });
}

namespace {

// One call of that shape in each direction that uses it, on zeros.
void run_once(const AttentionShape& shape, const DenseShape& dense, const at::TensorOptions& rows) {
  const at::TensorOptions sums = rows.dtype(at::kFloat);
  const auto filled = [](int64_t count, int64_t heads, int64_t width,
                         const at::TensorOptions& options) {
    std::vector<int64_t> sizes = {count, heads};
    if (width > 0) sizes.push_back(width);
    return at::zeros(sizes, options);
  };
  const int64_t query_rows = dense.tiles * dense.query_rows;
  const int64_t key_rows = dense.tiles * dense.key_rows;
  const at::Tensor q = filled(query_rows, shape.heads, shape.head_width, rows);
  const at::Tensor k = filled(key_rows, shape.key_heads, shape.head_width, rows);
  const at::Tensor lse = filled(query_rows, shape.heads, 0, sums);
  const at::Tensor row_sums = filled(query_rows, shape.heads, shape.head_width, sums);
  const at::Tensor key_sums = filled(key_rows, shape.key_heads, shape.head_width, sums);
  PackedTiles call{.causal = dense.causal, .dense = true};
  for (int64_t tile = 0; tile < dense.tiles; ++tile) {
    call.queries.add(0, {tile * dense.query_rows, (tile + 1) * dense.query_rows}, dense.query_rows);
    call.keys.add(0, {tile * dense.key_rows, (tile + 1) * dense.key_rows}, dense.key_rows);
  }
  RowStore queries;
  queries.add({0, query_rows}, {q, row_sums, lse});
  RowStore keys;
  keys.add({0, key_rows}, {k, k});
  run_forward(shape, {call}, queries, keys);
  if (!cudnn_attention_refusal(shape, q.scalar_type(), Direction::kBackward).empty()) return;
  RowStore backward_queries;
  backward_queries.add({0, query_rows}, {q, q, lse, lse, row_sums, q});
  RowStore backward_keys;
  backward_keys.add({0, key_rows}, {k, k, key_sums, key_sums});
  run_backward(shape, {call}, backward_queries, backward_keys);
}

}  // namespace

int64_t prepare_gpu_attention(const AttentionShape& shape, at::ScalarType type, at::Device device,
                              int64_t rows_max, bool split) {
  if (!flash_attention_refusal(shape, type).empty() ||
      !cudnn_attention_refusal(shape, type, Direction::kForward).empty()) {
    return 0;
  }
  const std::vector<DenseShape> shapes = dense_shapes(rows_max, split);
  for (const DenseShape& of_call : shapes) {
    run_once(shape, of_call, at::TensorOptions(type).device(device));
  }
  return std::ssize(shapes);
}

void gpu_merge_rows(const AttentionShape& shape, const at::Tensor& o, const at::Tensor& lse,
                    const at::Tensor& part_o, const at::Tensor& part_lse) {
  for_device_type(part_o.scalar_type(), [&]<typename T>() {
    using A = Accumulate<T>;
    const cuda::MergePiece<A, T> whole{
        .rows = o.size(0),
        .o = device_data<A>(o),
        .lse = device_data<A>(lse),
        .part_o = device_data<const T>(part_o),
        .part_lse = {
            .data = device_data<const A>(part_lse), .row_stride = shape.heads, .head_stride = 1}};
    cuda::merge_attention_rows<A, T>(shape, {&whole, 1}, current_stream());
  });
}

void gpu_delta(const AttentionShape& shape, const at::Tensor& o, const at::Tensor& d_o,
               const at::Tensor& delta) {
  for_device_type(o.scalar_type(), [&]<typename T>() {
    cuda::attention_delta(shape, o.size(0), device_data<const T>(o), device_data<const T>(d_o),
                          device_data<Accumulate<T>>(delta), current_stream());
  });
}

at::Tensor gpu_projected_output(const AttentionShape& shape, const at::Tensor& d_o,
                                const at::Tensor& delta) {
  at::Tensor o = at::empty_like(d_o);
  for_device_type(d_o.scalar_type(), [&]<typename T>() {
    cuda::attention_projected_output(shape, d_o.size(0), device_data<const T>(d_o),
                                     device_data<const Accumulate<T>>(delta), device_data<T>(o),
                                     current_stream());
  });
  return o;
}

void gpu_copy(const std::vector<std::pair<at::Tensor, at::Tensor>>& from_to) {
  std::vector<cuda::CopyPiece> pieces;
  for (const auto& [from, to] : from_to) {
    pieces.push_back(copy_piece(from, to));
  }
  cuda::copy_pieces(pieces, current_stream());
}

}  // namespace longspan
