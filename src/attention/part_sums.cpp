#include "attention/part_sums.h"

#include "attention/call_rows.h"
#include "device/device_types.h"

namespace longspan {

// Rows that the lists write already are written first.
void PartSums::claim(const at::Tensor& rows) {
  const auto begin = reinterpret_cast<uintptr_t>(rows.const_data_ptr());
  const uintptr_t end = begin + rows.nbytes();
  const auto after = claimed_.lower_bound(end);
  if (after != claimed_.begin() && std::prev(after)->second > begin) finish();
  claimed_[begin] = end;
}

void PartSums::merge(const Packing& packing, const at::Tensor& o, const at::Tensor& lse,
                     bool by_tile, const RowStore& queries) {
  const auto* values = device_data<const cuda::Bf16>(o);
  const auto* sums = device_data<const float>(lse);
  if (!by_tile) return merge_tile(packing, {0, packing.rows()}, values, sums, queries);
  for (int64_t begin = 0; begin < packing.rows(); begin += packing.rows_max) {
    merge_tile(packing, {begin, begin + packing.rows_max}, values, sums + begin * shape_.heads,
               queries);
  }
}

// `o`: of all packed rows; `lse`: [H, rows of the tile].
void PartSums::merge_tile(const Packing& packing, const Range& tile, const cuda::Bf16* o,
                          const float* lse, const RowStore& queries) {
  for (const PackedPiece& piece : packing.pieces) {
    const Range part = intersect(tile, {piece.packed_begin, piece.packed_end()});
    if (part.empty()) continue;
    const PackedPiece own{piece.source, shift(part, piece.rows.begin - piece.packed_begin), 0};
    const at::Tensor to = rows_of(queries, own, 1);
    claim(to);
    const auto merge_into = [&]<typename O>(auto& list) {
      list.push_back({.rows = part.size(),
                      .o = device_data<O>(to),
                      .lse = device_data<float>(rows_of(queries, own, 2)),
                      .part_o = o + part.begin * shape_.query_row_size(),
                      .part_lse = {.data = lse + part.begin - tile.begin,
                                   .row_stride = 1,
                                   .head_stride = tile.size()}});
    };
    if (to.scalar_type() == at::kFloat) {
      merge_into.operator()<float>(merges_);
    } else {
      merge_into.operator()<cuda::Bf16>(single_merges_);
    }
  }
}

void PartSums::add(const Packing& packing, const at::Tensor& rows, const RowStore& store,
                   size_t tensor_idx) {
  const int64_t row_size = rows.numel() / packing.rows();
  const auto* values = device_data<const cuda::Bf16>(rows);
  for (const PackedPiece& piece : packing.pieces) {
    const at::Tensor to = rows_of(store, piece, tensor_idx);
    claim(to);
    const auto* from = values + piece.packed_begin * row_size;
    if (to.scalar_type() == at::kFloat) {
      additions_.push_back({from, device_data<float>(to), to.numel()});
    } else {
      copies_.push_back({from, device_data<cuda::Bf16>(to), static_cast<int64_t>(to.nbytes())});
    }
  }
}

void PartSums::finish() {
  using cuda::Bf16;
  cuda::merge_attention_rows<float, Bf16>(shape_, merges_, current_stream());
  cuda::merge_attention_rows<Bf16, Bf16>(shape_, single_merges_, current_stream());
  cuda::add_pieces<Bf16>(additions_, current_stream());
  cuda::copy_pieces(copies_, current_stream());
  merges_.clear();
  single_merges_.clear();
  additions_.clear();
  copies_.clear();
  claimed_.clear();
}

}  // namespace longspan
