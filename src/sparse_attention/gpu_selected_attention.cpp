#include <ATen/ops/bmm.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/sort.h>

#include <algorithm>
#include <vector>

#include "attention/row_arithmetic.h"
#include "base/check.h"
#include "device/device.h"
#include "device/device_types.h"
#include "kernels/cuda/hopper_sparse_attention.h"
#include "kernels/cuda/sparse_attention.h"
#include "sparse_attention/gpu_sparse_attention.h"

namespace longspan {
namespace {

using cuda::Accumulate;

// Library products are fastest where rows begin at 16 bytes.
constexpr int64_t kKeyMultiple = 8;

// Where the rows of a piece stand: positions in their documents, and those documents' first rows in
// tables over `lines`.
struct RowPlaces {
  RowPlaces(const TokenLayout& layout, const Range& piece, at::Device device)
      : lines{layout.document(layout.document_at(piece.begin)).begin, piece.end} {
    std::vector<int32_t> row_positions;
    std::vector<int64_t> row_bases;
    for (const DocumentPart& part : layout.document_parts(piece)) {
      for (int64_t at = part.positions.begin; at < part.positions.end; ++at) {
        row_positions.push_back(static_cast<int32_t>(at));
      }
      row_bases.insert(row_bases.end(), static_cast<size_t>(part.line.size()),
                       layout.document(part.document).begin - lines.begin);
    }
    positions = upload(std::span<const int32_t>(row_positions), device);
    bases = upload(std::span<const int64_t>(row_bases), device);
  }

  Range lines;
  at::Tensor positions;
  at::Tensor bases;
};

// The address of each line's row, on the device; zero where the store has none.
at::Tensor row_table(const RowStore& store, const Range& lines, int64_t width, at::ScalarType type,
                     at::Device device) {
  std::vector<cuda::LineSegment> segments;
  for (const Range& held : intersect(store.lines(), std::vector<Range>{lines})) {
    for (const RowStore::Piece& piece : store.find(held)) {
      const at::Tensor& rows = store.tensors(piece.source)[0];
      LONGSPAN_CHECK(rows.is_cuda() && rows.is_contiguous() && rows.dim() == 2 &&
                         rows.size(1) == width && rows.scalar_type() == type,
                     "latents or their sums ", rows.toString(), " ", rows.sizes(),
                     ", expected rows of ", width, " numbers of ", c10::toString(type));
      segments.push_back({piece.line.begin, piece.line.end,
                          static_cast<std::byte*>(rows.data_ptr()) +
                              piece.rows.begin * width * rows.element_size()});
    }
  }
  const at::Tensor on_device = upload_bytes(std::as_bytes(std::span(segments)), device);
  const at::Tensor table = at::empty({lines.size()}, at::TensorOptions(at::kLong).device(device));
  cuda::row_table(static_cast<const cuda::LineSegment*>(on_device.const_data_ptr()),
                  std::ssize(segments), lines.begin, lines.size(),
                  width * static_cast<int64_t>(c10::elementSize(type)), device_data<void*>(table),
                  current_stream());
  return table;
}

// a [n, A, K] times b [n, K, B], in the accumulation type.
at::Tensor accumulated_product(const at::Tensor& a, const at::Tensor& b) {
  const at::ScalarType sums = accumulate_type(a.scalar_type());
  return sums == a.scalar_type() ? at::bmm(a, b) : at::bmm(a, b, sums);
}

// The queries of a piece, in blocks whose gathered rows and all that belongs to them are bounded.
class Blocks {
 public:
  Blocks(const SparseAttentionShape& shape, const RowPlaces& places, const at::Tensor& q_THR,
         const at::Tensor& pools_TB)
      : shape_(shape), places_(places), options_(q_THR.options()), pools_(pools_TB) {
    const int64_t keys = (pools_TB.size(1) + 1) * shape.pool_tokens;
    padded_keys_ = (keys + kKeyMultiple - 1) / kKeyMultiple * kKeyMultiple;
    num_pools_ = at::empty({pools_TB.size(0)}, pools_TB.options());
    cuda::count_pools(device_data<const int32_t>(pools_TB), pools_TB.size(0), pools_TB.size(1),
                      device_data<int32_t>(num_pools_), current_stream());
  }

  int64_t padded_keys() const { return padded_keys_; }
  // Whether one kernel runs attention, without gathering rows first.
  bool fused() const {
    return gpu_selected_attention_is_fast(shape_, pools_.size(1),
                                          c10::typeMetaToScalarType(options_.dtype()));
  }
  const at::TensorOptions& options() const { return options_; }

  template <typename Run>
  void for_each(int64_t bytes_of_row, const Run& run) const {
    const int64_t rows = pools_.size(0);
    const int64_t step = std::clamp<int64_t>(kGatheredBytes / bytes_of_row, 1, rows);
    for (int64_t begin = 0; begin < rows; begin += step) {
      const Range block{begin, std::min(rows, begin + step)};
      run(block, rows_of(block));
    }
  }

  cuda::SelectedRows all() const { return rows_of({0, pools_.size(0)}); }

  at::Tensor empty(const cuda::SelectedRows& of, int64_t rows, int64_t columns) const {
    return at::empty({of.count, rows, columns}, options_);
  }

  // Rows [n, L, R] of a block's keys.
  template <typename T>
  at::Tensor gather(const cuda::SelectedRows& of, const at::Tensor& table) const {
    const at::Tensor gathered = empty(of, padded_keys_, shape_.width);
    cuda::gather_rows<T>(of, device_data<void* const>(table), device_data<T>(gathered),
                         current_stream());
    return gathered;
  }

 private:
  cuda::SelectedRows rows_of(const Range& block) const {
    return {.shape = shape_,
            .count = block.size(),
            .pools = device_data<const int32_t>(pools_) + block.begin * pools_.size(1),
            .positions = device_data<const int32_t>(places_.positions) + block.begin,
            .bases = device_data<const int64_t>(places_.bases) + block.begin,
            .num_pools = device_data<const int32_t>(num_pools_) + block.begin,
            .pools_per_row = pools_.size(1),
            .padded_keys = padded_keys_};
  }

  const SparseAttentionShape& shape_;
  const RowPlaces& places_;
  const at::TensorOptions options_;
  const at::Tensor pools_;
  at::Tensor num_pools_;
  int64_t padded_keys_ = 0;
};

at::Tensor rows_of(const at::Tensor& tensor, const Range& rows) {
  return tensor.narrow(0, rows.begin, rows.size());
}

// What backward reads and writes, row by row.
struct GradientRows {
  const SelectedGradientInputs& inputs;
  at::Tensor delta_TH;
  at::Tensor table;  // of latents
  at::Tensor d_q_THR;
};

// dQ of a block, and the gradients of its scores and the weights [n, 2 H, L]. `heads`: queries and
// gradients of outputs side by side, so that one product serves both.
template <typename T>
at::Tensor query_gradients(const Blocks& blocks, const Range& block, const cuda::SelectedRows& of,
                           const GradientRows& rows, const at::Tensor& heads) {
  using A = Accumulate<T>;
  const at::Tensor gradients = blocks.empty(of, 2 * of.shape.heads, blocks.padded_keys());
  at::Tensor d_q = rows_of(rows.d_q_THR, block);
  const at::Tensor lse = rows_of(rows.inputs.lse_TH, block);
  const at::Tensor delta = rows_of(rows.delta_TH, block);
  if constexpr (std::is_same_v<T, cuda::Bf16>) {
    if (blocks.fused()) {
      cuda::hopper_selected_gradient(of,
                                     {device_data<const T>(rows_of(rows.inputs.q_THR, block)),
                                      device_data<const T>(rows_of(rows.inputs.d_o_THR, block)),
                                      device_data<const A>(lse), device_data<const A>(delta)},
                                     device_data<void* const>(rows.table), device_data<T>(d_q),
                                     device_data<T>(gradients), current_stream());
      return gradients;
    }
  }
  const at::Tensor gathered = blocks.gather<T>(of, rows.table);
  const at::Tensor products = accumulated_product(heads, gathered.transpose(1, 2));
  cuda::selected_score_gradient<T>(of, device_data<const A>(products), device_data<const A>(lse),
                                   device_data<const A>(delta), device_data<T>(gradients),
                                   current_stream());
  at::bmm_out(d_q, gradients.narrow(1, 0, of.shape.heads), gathered);
  return gradients;
}

// Sums what the queries of a block give to the latents that they chose, in their order.
template <typename T>
void add_contributions(const cuda::SelectedRows& of, const at::Tensor& contributions,
                       const at::Tensor& table, const at::TensorOptions& ids) {
  const at::Tensor keys = at::empty({of.count * of.entries_per_row()}, ids);
  cuda::entry_keys(of, device_data<int32_t>(keys), current_stream());
  const auto [sorted, order] = at::sort(keys, std::optional<bool>(true), /*dim=*/0);
  cuda::add_to_latents<T>(of, device_data<const int32_t>(sorted), device_data<const int64_t>(order),
                          device_data<const T>(contributions), device_data<void* const>(table),
                          current_stream());
}

}  // namespace

bool gpu_selected_attention_is_fast(const SparseAttentionShape& shape, int64_t top_pools,
                                    at::ScalarType type) {
  return type == at::kBFloat16 && cuda::hopper_sparse_attention_runs(shape, top_pools);
}

SelectedOutput gpu_selected_attention(const SparseAttentionShape& shape, const TokenLayout& layout,
                                      const Range& piece, const at::Tensor& q_THR,
                                      const at::Tensor& pools_TB, const RowStore& latents) {
  const at::ScalarType type = q_THR.scalar_type();
  SelectedOutput output{
      at::empty_like(q_THR),
      at::empty({piece.size(), shape.heads}, q_THR.options().dtype(accumulate_type(type)))};
  if (piece.empty()) return output;
  const RowPlaces places(layout, piece, q_THR.device());
  const at::Tensor table = row_table(latents, places.lines, shape.width, type, q_THR.device());
  const Blocks blocks(shape, places, q_THR, pools_TB);
  if (blocks.fused()) {
    cuda::hopper_selected_attention(
        blocks.all(), device_data<const cuda::Bf16>(q_THR), device_data<void* const>(table),
        device_data<cuda::Bf16>(output.o_THR), device_data<float>(output.lse_TH), current_stream());
    return output;
  }
  for_device_type(type, [&]<typename T>() {
    const auto row_bytes = static_cast<int64_t>(
        blocks.padded_keys() *
        (shape.width * sizeof(T) + shape.heads * (sizeof(T) + sizeof(Accumulate<T>))));
    blocks.for_each(row_bytes, [&](const Range& block, const cuda::SelectedRows& of) {
      const at::Tensor gathered = blocks.gather<T>(of, table);
      const at::Tensor scores =
          accumulated_product(rows_of(q_THR, block), gathered.transpose(1, 2));
      const at::Tensor weights = blocks.empty(of, shape.heads, blocks.padded_keys());
      cuda::selected_softmax<T>(
          of, device_data<const Accumulate<T>>(scores), device_data<T>(weights),
          device_data<Accumulate<T>>(rows_of(output.lse_TH, block)), current_stream());
      at::Tensor o = rows_of(output.o_THR, block);
      at::bmm_out(o, weights, gathered);
    });
  });
  return output;
}

at::Tensor gpu_selected_attention_backward(const SparseAttentionShape& shape,
                                           const TokenLayout& layout, const Range& piece,
                                           const SelectedGradientInputs& inputs,
                                           const RowStore& latents, const RowStore& sums) {
  const at::Tensor d_q = at::empty_like(inputs.q_THR);
  if (piece.empty()) return d_q;
  const at::ScalarType type = d_q.scalar_type();
  const RowPlaces places(layout, piece, d_q.device());
  const at::Tensor sum_table =
      row_table(sums, places.lines, shape.width, accumulate_type(type), d_q.device());
  const AttentionShape all_heads{
      .heads = shape.heads, .key_heads = shape.heads, .head_width = shape.width};
  const GradientRows rows{inputs, row_delta(all_heads, inputs.o_THR, inputs.d_o_THR),
                          row_table(latents, places.lines, shape.width, type, d_q.device()), d_q};
  const Blocks blocks(shape, places, inputs.q_THR, inputs.pools_TB);
  for_device_type(type, [&]<typename T>() {
    const auto row_bytes = static_cast<int64_t>(
        blocks.padded_keys() *
        (2 * shape.width * sizeof(T) + 2 * shape.heads * (sizeof(T) + sizeof(Accumulate<T>))));
    blocks.for_each(row_bytes, [&](const Range& block, const cuda::SelectedRows& of) {
      const at::Tensor heads =
          at::cat({rows_of(inputs.q_THR, block), rows_of(inputs.d_o_THR, block)}, 1);
      const at::Tensor gradients = query_gradients<T>(blocks, block, of, rows, heads);
      const at::Tensor contributions = at::bmm(gradients.transpose(1, 2), heads);
      add_contributions<T>(of, contributions, sum_table, inputs.pools_TB.options());
    });
  });
  return d_q;
}

}  // namespace longspan
