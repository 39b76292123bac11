#include "attention/call_rows.h"

#include <ATen/ops/empty.h>

#include <optional>

#include "device/device_types.h"

namespace longspan {
namespace {

// The fast kernels read 16 bytes at a time; rows inside a message may begin anywhere.
bool is_aligned(const at::Tensor& rows) {
  return reinterpret_cast<uintptr_t>(rows.const_data_ptr()) % 16 == 0;
}

// The packed rows where they lie, with those around them as filling.
std::optional<at::Tensor> view_of(const RowStore& store, const Packing& packing,
                                  size_t tensor_idx) {
  if (packing.pieces.size() != 1) return std::nullopt;
  const PackedPiece& piece = packing.pieces.front();
  const at::Tensor& source = store.tensors(piece.source).at(tensor_idx);
  const int64_t begin = piece.rows.begin - piece.packed_begin;
  if (begin < 0 || begin + packing.rows() > source.size(0)) return std::nullopt;
  at::Tensor rows = source.narrow(0, begin, packing.rows());
  if (!rows.is_contiguous() || !is_aligned(rows)) return std::nullopt;
  return rows;
}

}  // namespace

at::Tensor rows_of(const RowStore& store, const PackedPiece& piece, size_t tensor_idx) {
  return store.tensors(piece.source).at(tensor_idx).narrow(0, piece.rows.begin, piece.rows.size());
}

cuda::CopyPiece copy_piece(const at::Tensor& from, const at::Tensor& to) {
  LONGSPAN_CHECK(from.is_contiguous() && to.is_contiguous() && from.nbytes() == to.nbytes() &&
                     from.scalar_type() == to.scalar_type(),
                 "copy of ", from.toString(), " ", from.sizes(), " to ", to.toString(), " ",
                 to.sizes());
  return {from.const_data_ptr(), to.mutable_data_ptr(), static_cast<int64_t>(from.nbytes())};
}

at::Tensor CallRows::packed(const RowStore& store, const Packing& packing, size_t tensor_idx) {
  if (std::optional<at::Tensor> view = view_of(store, packing, tensor_idx)) return *view;
  const at::Tensor first = rows_of(store, packing.pieces.front(), tensor_idx);
  std::vector<int64_t> sizes = first.sizes().vec();
  sizes.front() = packing.rows();
  const at::Tensor packed = at::empty(sizes, first.options());
  for (const PackedPiece& piece : packing.pieces) {
    sources_.push_back(rows_of(store, piece, tensor_idx).contiguous());
    copies_.push_back(
        copy_piece(sources_.back(), packed.narrow(0, piece.packed_begin, piece.rows.size())));
  }
  for (const Range& rows : filling_of(packing)) {
    const at::Tensor zeros = packed.narrow(0, rows.begin, rows.size());
    copies_.push_back({nullptr, zeros.mutable_data_ptr(), static_cast<int64_t>(zeros.nbytes())});
  }
  copied_bytes_ += static_cast<int64_t>(packed.nbytes());
  return packed;
}

at::Tensor CallRows::head_first(const RowStore& store, const Packing& packing, size_t tensor_idx,
                                bool by_tile) {
  const at::TensorOptions options = rows_of(store, packing.pieces.front(), tensor_idx).options();
  if (!by_tile) {
    const at::Tensor rows = at::empty({shape_.heads, packing.rows()}, options);
    add_head_rows(store, packing, tensor_idx, {0, packing.rows()}, device_data<float>(rows));
    return rows;
  }
  const int64_t tiles = packing.rows() / packing.rows_max;
  const at::Tensor rows = at::empty({tiles, shape_.heads, packing.rows_max}, options);
  for (int64_t tile = 0; tile < tiles; ++tile) {
    const int64_t begin = tile * packing.rows_max;
    add_head_rows(store, packing, tensor_idx, {begin, begin + packing.rows_max},
                  device_data<float>(rows) + begin * shape_.heads);
  }
  return rows;
}

// `target`: [H, rows of the tile].
void CallRows::add_head_rows(const RowStore& store, const Packing& packing, size_t tensor_idx,
                             const Range& tile, float* target) {
  for (const PackedPiece& piece : packing.pieces) {
    const Range part = intersect(tile, {piece.packed_begin, piece.packed_end()});
    if (part.empty()) continue;
    const at::Tensor rows = rows_of(store, piece, tensor_idx);
    LONGSPAN_CHECK(rows.is_contiguous(), "rows of one value a head with strides ", rows.strides());
    head_copies_.push_back(
        {device_data<float>(rows) + (part.begin - piece.packed_begin) * shape_.heads,
         target + part.begin - tile.begin, part.size(), tile.size()});
  }
  for (const Range& filling : filling_of(packing)) {
    const Range part = intersect(tile, filling);
    head_copies_.push_back({nullptr, target + part.begin - tile.begin, part.size(), tile.size()});
  }
}

void CallRows::copy() {
  cuda::copy_pieces(copies_, current_stream());
  cuda::copy_head_rows(head_copies_, shape_.heads, current_stream());
  copies_.clear();
  head_copies_.clear();
  sources_.clear();
}

}  // namespace longspan
