#include "attention/gpu_attention.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/zeros.h>

#include <map>

#include "attention/library_attention.h"
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

cuda::CopyPiece copy_piece(const at::Tensor& from, const at::Tensor& to) {
  LONGSPAN_CHECK(from.is_contiguous() && to.is_contiguous() && from.nbytes() == to.nbytes() &&
                     from.scalar_type() == to.scalar_type(),
                 "copy of ", from.toString(), " ", from.sizes(), " to ", to.toString(), " ",
                 to.sizes());
  return {from.const_data_ptr(), to.mutable_data_ptr(), static_cast<int64_t>(from.nbytes())};
}

at::Tensor rows_of(const RowStore& store, const PackedPiece& piece, size_t tensor_idx) {
  return store.tensors(piece.source).at(tensor_idx).narrow(0, piece.rows.begin, piece.rows.size());
}

// The packed rows of one tensor of the store: a view if they are one piece. Filling is zero.
at::Tensor pack(const RowStore& store, const Packing& packing, size_t tensor_idx) {
  const std::vector<Range> filling = filling_of(packing);
  if (packing.pieces.size() == 1 && filling.empty()) {
    return rows_of(store, packing.pieces.front(), tensor_idx);
  }
  std::vector<at::Tensor> parts;
  for (const PackedPiece& piece : packing.pieces) {
    parts.push_back(rows_of(store, piece, tensor_idx).contiguous());
  }
  std::vector<int64_t> sizes = parts.front().sizes().vec();
  sizes.front() = packing.rows();
  at::Tensor packed = at::empty(sizes, parts.front().options());
  std::vector<cuda::CopyPiece> pieces;
  for (size_t idx = 0; idx < parts.size(); ++idx) {
    const int64_t begin = packing.pieces[idx].packed_begin;
    pieces.push_back(copy_piece(parts[idx], packed.narrow(0, begin, parts[idx].size(0))));
  }
  for (const Range& rows : filling) {
    const at::Tensor zeros = packed.narrow(0, rows.begin, rows.size());
    pieces.push_back({nullptr, zeros.mutable_data_ptr(), static_cast<int64_t>(zeros.nbytes())});
  }
  cuda::copy_pieces(pieces, current_stream());
  return packed;
}

// Rows inside a message may begin anywhere; the fast kernels read 16 bytes at a time.
at::Tensor aligned(at::Tensor rows) {
  const bool fits = reinterpret_cast<uintptr_t>(rows.const_data_ptr()) % 16 == 0;
  return fits ? rows : rows.clone();
}

FlashInputs flash_inputs(const AttentionShape& shape, const PackedTiles& tiles,
                         const RowStore& queries, const RowStore& keys) {
  FlashInputs in{.q = aligned(pack(queries, tiles.queries, 0)),
                 .k = aligned(pack(keys, tiles.keys, 0)),
                 .v = aligned(pack(keys, tiles.keys, 1)),
                 .query_rows_max = tiles.queries.rows_max,
                 .key_rows_max = tiles.keys.rows_max,
                 .causal = tiles.causal,
                 .scale = shape.scale};
  in.query_ends = upload(std::span<const int32_t>(tiles.queries.ends), in.q.device());
  in.key_ends = upload(std::span<const int32_t>(tiles.keys.ends), in.q.device());
  return in;
}

// [tiles, rows of a tile, ...] of packed rows.
at::Tensor by_tile(const at::Tensor& rows, const Packing& packing) {
  std::vector<int64_t> sizes = rows.sizes().vec();
  sizes.front() = packing.rows_max;
  sizes.insert(sizes.begin(), rows.size(0) / packing.rows_max);
  return rows.view(sizes);
}

DenseInputs dense_inputs(const AttentionShape& shape, const PackedTiles& tiles,
                         const RowStore& queries, const RowStore& keys) {
  const auto packed = [](const RowStore& store, const Packing& packing, size_t tensor_idx) {
    return by_tile(aligned(pack(store, packing, tensor_idx)), packing);
  };
  return {.q = packed(queries, tiles.queries, 0),
          .k = packed(keys, tiles.keys, 0),
          .v = packed(keys, tiles.keys, 1),
          .causal = tiles.causal,
          .scale = shape.scale};
}

// Where results have the type of the inputs, rows have one part each.
std::vector<PackedTiles> calls_for(const AttentionShape& shape,
                                   const std::vector<AttentionSlice>& slices,
                                   const RowStore& queries, const RowStore& keys,
                                   Direction direction) {
  const size_t result_idx = direction == Direction::kForward ? 1 : 4;  // of the queries' tensors
  const at::ScalarType type = queries.tensors(0).at(0).scalar_type();
  bool sums = true;
  const auto check = [&](const RowStore& store, size_t first_result) {
    for (int32_t source = 0; source < store.num_sources(); ++source) {
      const std::vector<at::Tensor>& tensors = store.tensors(source);
      for (size_t idx = first_result; idx < tensors.size(); ++idx) {
        sums = sums && tensors[idx].scalar_type() != type;
      }
    }
  };
  check(queries, result_idx);
  check(keys, 2);
  const bool dense = cudnn_attention_refusal(shape, type, direction).empty();
  return packed_tiles(slices, {.dense = dense, .split = dense && sums});
}

// What a call of the library gives, for each call in order; computed side by side.
template <typename Output, typename Compute>
std::vector<Output> compute_calls(const std::vector<PackedTiles>& calls, at::Device device,
                                  const Compute& compute) {
  std::vector<Output> outputs;
  if (calls.size() == 1) {
    outputs.push_back(compute(calls.front()));
    return outputs;
  }
  SideQueues queues(device);
  for (const PackedTiles& call : calls) {
    queues.run([&] { outputs.push_back(compute(call)); });
  }
  queues.join();
  return outputs;
}

LibraryOutput forward_of(const AttentionShape& shape, const PackedTiles& tiles,
                         const RowStore& queries, const RowStore& keys) {
  return tiles.dense ? cudnn_forward(dense_inputs(shape, tiles, queries, keys))
                     : flash_forward(flash_inputs(shape, tiles, queries, keys));
}

void merge_output(const AttentionShape& shape, const PackedTiles& tiles, const LibraryOutput& out,
                  const RowStore& queries) {
  const auto* o = device_data<const cuda::Bf16>(out.o);
  const auto* lse = device_data<const float>(out.lse);
  for (const PackedPiece& piece : tiles.queries.pieces) {
    cuda::PartLse<float> part{
        .data = lse + piece.packed_begin, .row_stride = 1, .head_stride = tiles.queries.rows()};
    if (tiles.dense) part = {lse + piece.packed_begin * shape.heads, shape.heads, 1};
    const at::Tensor to = rows_of(queries, piece, 1);
    const auto merge = [&]<typename O>() {
      cuda::merge_attention_rows(shape, piece.rows.size(), device_data<O>(to),
                                 device_data<float>(rows_of(queries, piece, 2)),
                                 o + piece.packed_begin * shape.query_row_size(), part,
                                 current_stream());
    };
    if (to.scalar_type() == at::kFloat) {
      merge.operator()<float>();
    } else {
      merge.operator()<cuda::Bf16>();
    }
  }
}

// Where every row has one part, the store holds that part.
void copy_packed(const at::Tensor& packed, const Packing& packing, const RowStore& store,
                 size_t tensor_idx) {
  std::vector<std::pair<at::Tensor, at::Tensor>> copies;
  for (const PackedPiece& piece : packing.pieces) {
    copies.emplace_back(packed.narrow(0, piece.packed_begin, piece.rows.size()),
                        rows_of(store, piece, tensor_idx));
  }
  gpu_copy(copies);
}

// Adds packed rows to the sums of a store. Pieces in one launch must be disjoint; a row that comes
// again begins the next launch, so sums have a fixed order.
void add_packed(const at::Tensor& packed, const Packing& packing, const RowStore& store,
                size_t tensor_idx) {
  const int64_t row_size = packed.numel() / packing.rows();
  if (rows_of(store, packing.pieces.front(), tensor_idx).scalar_type() == packed.scalar_type()) {
    return copy_packed(packed.view({packing.rows(), row_size}), packing, store, tensor_idx);
  }
  const auto* values = device_data<const cuda::Bf16>(packed);
  std::vector<cuda::AddPiece<cuda::Bf16>> batch;
  std::map<int32_t, std::vector<Range>> rows;
  const auto overlaps = [&](const PackedPiece& piece) {
    for (const Range& other : rows[piece.source]) {
      if (!intersect(other, piece.rows).empty()) return true;
    }
    return false;
  };
  const auto flush = [&] {
    cuda::add_pieces<cuda::Bf16>(batch, current_stream());
    batch.clear();
    rows.clear();
  };
  for (const PackedPiece& piece : packing.pieces) {
    if (overlaps(piece)) flush();
    rows[piece.source].push_back(piece.rows);
    batch.push_back({values + piece.packed_begin * row_size,
                     device_data<float>(rows_of(store, piece, tensor_idx)),
                     piece.rows.size() * row_size});
  }
  flush();
}

LibraryGradients backward_of(const AttentionShape& shape, const PackedTiles& tiles,
                             const RowStore& queries, const RowStore& keys) {
  const at::Tensor d_o = aligned(pack(queries, tiles.queries, 1).contiguous());
  const at::Tensor lse = pack(queries, tiles.queries, 2);
  const at::Tensor delta = pack(queries, tiles.queries, 3);
  // The operations ask for O, of which they use the row sums with dO alone.
  const at::Tensor o = at::empty_like(d_o);
  cuda::attention_projected_output(shape, tiles.queries.rows(), device_data<const cuda::Bf16>(d_o),
                                   device_data<const float>(delta), device_data<cuda::Bf16>(o),
                                   current_stream());
  if (!tiles.dense) {
    return flash_backward(flash_inputs(shape, tiles, queries, keys), d_o, o, lse.t().contiguous());
  }
  return cudnn_backward(dense_inputs(shape, tiles, queries, keys), by_tile(d_o, tiles.queries),
                        by_tile(o, tiles.queries), by_tile(lse.contiguous(), tiles.queries));
}

void add_gradients(const PackedTiles& tiles, const LibraryGradients& gradients,
                   const RowStore& queries, const RowStore& keys) {
  add_packed(gradients.d_q, tiles.queries, queries, 4);
  add_packed(gradients.d_k, tiles.keys, keys, 2);
  add_packed(gradients.d_v, tiles.keys, keys, 3);
}

void run_forward(const AttentionShape& shape, const std::vector<PackedTiles>& calls,
                 const RowStore& queries, const RowStore& keys) {
  const auto outputs = compute_calls<LibraryOutput>(
      calls, queries.tensors(0).at(0).device(),
      [&](const PackedTiles& call) { return forward_of(shape, call, queries, keys); });
  for (size_t idx = 0; idx < calls.size(); ++idx) {
    merge_output(shape, calls[idx], outputs[idx], queries);
  }
}

void run_backward(const AttentionShape& shape, const std::vector<PackedTiles>& calls,
                  const RowStore& queries, const RowStore& keys) {
  const auto gradients = compute_calls<LibraryGradients>(
      calls, queries.tensors(0).at(0).device(),
      [&](const PackedTiles& call) { return backward_of(shape, call, queries, keys); });
  for (size_t idx = 0; idx < calls.size(); ++idx) {
    add_gradients(calls[idx], gradients[idx], queries, keys);
  }
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
    return run_forward(shape, calls_for(shape, slices, queries, keys, Direction::kForward), queries,
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
    return run_backward(shape, calls_for(shape, slices, queries, keys, Direction::kBackward),
                        queries, keys);
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
  backward_queries.add({0, query_rows}, {q, q, lse, lse, row_sums});
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
    cuda::merge_attention_rows(
        shape, o.size(0), device_data<A>(o), device_data<A>(lse), device_data<const T>(part_o),
        {.data = device_data<const A>(part_lse), .row_stride = shape.heads, .head_stride = 1},
        current_stream());
  });
}

void gpu_delta(const AttentionShape& shape, const at::Tensor& o, const at::Tensor& d_o,
               const at::Tensor& delta) {
  for_device_type(o.scalar_type(), [&]<typename T>() {
    cuda::attention_delta(shape, o.size(0), device_data<const T>(o), device_data<const T>(d_o),
                          device_data<Accumulate<T>>(delta), current_stream());
  });
}

void gpu_copy(const std::vector<std::pair<at::Tensor, at::Tensor>>& from_to) {
  std::vector<cuda::CopyPiece> pieces;
  for (const auto& [from, to] : from_to) {
    pieces.push_back(copy_piece(from, to));
  }
  cuda::copy_pieces(pieces, current_stream());
}

}  // namespace longspan
