#include "sparse_attention/selected_attention.h"

#include <ATen/Parallel.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <c10/core/GradMode.h>

#include <algorithm>

#include "base/check.h"
#include "device/device.h"
#include "kernels/cpu/sparse_attention.h"
#include "layers/parallel_ranges.h"
#include "layers/real_types.h"
#include "sparse_attention/gpu_sparse_attention.h"

namespace longspan {
namespace {

// Queries that one work object computes one after the other.
constexpr int64_t kQueryGrain = 8;

// The rows of a store that belong to a document's positions [0, end), as far as they are there.
template <typename Real>
std::vector<LatentRows<Real>> rows_of(const RowStore& store, const TokenLayout& layout,
                                      int32_t document, int64_t end, int64_t width) {
  const Range lines = layout.to_line(document, {0, end});
  std::vector<LatentRows<Real>> rows;
  for (const Range& held : intersect(store.lines(), std::vector<Range>{lines})) {
    for (const RowStore::Piece& piece : store.find(held)) {
      const at::Tensor tensor = store.tensors(piece.source)[0];
      LONGSPAN_CHECK(tensor.is_contiguous() && tensor.dim() == 2 && tensor.size(1) == width,
                     "latents ", tensor.toString(), " ", tensor.sizes(), ", expected rows of ",
                     width, " numbers");
      Real* data = nullptr;
      if constexpr (std::is_const_v<Real>) {
        data = tensor.const_data_ptr<std::remove_const_t<Real>>();
      } else {
        data = tensor.mutable_data_ptr<Real>();
      }
      rows.push_back({shift(piece.line, -lines.begin), data + piece.rows.begin * width});
    }
  }
  return rows;
}

void check_inputs(const SparseAttentionShape& shape, const Range& piece, const at::Tensor& q_THR,
                  const at::Tensor& pools_TB) {
  LONGSPAN_CHECK(q_THR.is_contiguous() && q_THR.dim() == 3 && q_THR.size(0) == piece.size() &&
                     q_THR.size(1) == shape.heads && q_THR.size(2) == shape.width,
                 "queries ", q_THR.toString(), " ", q_THR.sizes(), " of ", piece.size(),
                 " tokens, ", shape.heads, " heads of ", shape.width);
  LONGSPAN_CHECK(pools_TB.is_contiguous() && pools_TB.dim() == 2 &&
                     pools_TB.size(0) == piece.size() && pools_TB.scalar_type() == at::kInt,
                 "selected pools ", pools_TB.toString(), " ", pools_TB.sizes(), " of ",
                 piece.size(), " tokens");
}

// Queries of a part of a document, and where its rows begin in tensors of the piece.
template <typename Real>
SparseQueries<Real> queries_of(const SparseAttentionShape& shape, const DocumentPart& part,
                               const Range& piece, const at::Tensor& q_THR,
                               const at::Tensor& pools_TB) {
  const int64_t row = part.line.begin - piece.begin;
  return {q_THR.const_data_ptr<Real>() + row * shape.row_size(),
          pools_TB.const_data_ptr<int32_t>() + row * pools_TB.size(1), part.positions.begin};
}

// Backward of one part of a document.
template <typename Real>
class PartBackward {
 public:
  PartBackward(const SparseAttentionShape& shape, const TokenLayout& layout, const Range& piece,
               const DocumentPart& part, const SelectedGradientInputs& inputs,
               const RowStore& latents, const RowStore& sums, Real* d_q)
      : shape_(shape),
        pools_(inputs.pools_TB.size(1)),
        part_(part),
        queries_(queries_of<Real>(shape, part, piece, inputs.q_THR, inputs.pools_TB)),
        latents_(
            rows_of<const Real>(latents, layout, part.document, part.positions.end, shape.width)),
        sums_(rows_of<Real>(sums, layout, part.document, part.positions.end, shape.width)) {
    const int64_t row = part.line.begin - piece.begin;
    given_ = {inputs.o_THR.const_data_ptr<Real>() + row * shape.row_size(),
              inputs.lse_TH.const_data_ptr<Real>() + row * shape.heads,
              inputs.d_o_THR.const_data_ptr<Real>() + row * shape.row_size()};
    d_q_ = d_q + row * shape.row_size();
  }

  void run() {
    const int64_t row_values = SparseAttentionWork<Real>(shape_, pools_).row_values();
    const int64_t row_bytes = 2 * row_values * static_cast<int64_t>(sizeof(Real));
    const int64_t block_rows =
        std::clamp<int64_t>(kWeightBytes / row_bytes, 1, part_.positions.size());
    std::vector<Real> weights(static_cast<size_t>(block_rows * row_values));
    std::vector<Real> d_scores(weights.size());
    const KeyWeights<Real> of_block{weights.data(), d_scores.data()};
    for (int64_t begin = 0; begin < part_.positions.size(); begin += block_rows) {
      run_block({begin, std::min(part_.positions.size(), begin + block_rows)}, of_block,
                row_values);
    }
  }

 private:
  void run_block(Range block, const KeyWeights<Real>& of_block, int64_t row_values) {
    parallel_ranges(block, kQueryGrain, [&](Range rows) {
      SparseAttentionWork<Real> work(shape_, pools_);
      for (int64_t row = rows.begin; row < rows.end; ++row) {
        const int64_t at = (row - block.begin) * row_values;
        work.query_gradient(queries_, given_, row, latents_,
                            {of_block.weights + at, of_block.d_scores + at}, d_q_);
      }
    });
    const int64_t parts = at::get_num_threads() == 1 ? 1 : 4 * at::get_num_threads();
    const int64_t keys = part_.positions.begin + block.end;
    parallel_ranges({0, parts}, 1, [&](Range some) {
      SparseAttentionWork<Real> work(shape_, pools_);
      for (int64_t idx = some.begin; idx < some.end; ++idx) {
        work.latent_gradient(queries_, given_.d_o, block, of_block,
                             {idx * keys / parts, (idx + 1) * keys / parts}, sums_);
      }
    });
  }

  const SparseAttentionShape& shape_;
  const int64_t pools_;
  const DocumentPart& part_;
  const SparseQueries<Real> queries_;
  SparseGradientInputs<Real> given_;
  const std::vector<LatentRows<const Real>> latents_;
  const std::vector<LatentRows<Real>> sums_;
  Real* d_q_;
};

}  // namespace

bool selected_attention_is_fast(const SparseAttentionShape& shape, int64_t top_pools,
                                at::ScalarType type, at::Device device) {
  if constexpr (kBuiltWithCuda) {
    if (!device.is_cpu()) return gpu_selected_attention_is_fast(shape, top_pools, type);
  }
  return true;
}

SelectedOutput selected_attention(const SparseAttentionShape& shape, const TokenLayout& layout,
                                  const Range& piece, const at::Tensor& q_THR,
                                  const at::Tensor& pools_TB, const RowStore& latents) {
  const c10::NoGradGuard no_grad;
  check_inputs(shape, piece, q_THR, pools_TB);
  if constexpr (kBuiltWithCuda) {
    if (q_THR.is_cuda()) {
      return gpu_selected_attention(shape, layout, piece, q_THR, pools_TB, latents);
    }
  }
  SelectedOutput output{at::empty_like(q_THR),
                        at::empty({piece.size(), shape.heads}, q_THR.options())};
  for_real_type(q_THR.scalar_type(), [&]<typename Real>() {
    for (const DocumentPart& part : layout.document_parts(piece)) {
      const auto rows =
          rows_of<const Real>(latents, layout, part.document, part.positions.end, shape.width);
      const auto queries = queries_of<Real>(shape, part, piece, q_THR, pools_TB);
      const int64_t first = part.line.begin - piece.begin;
      Real* o = output.o_THR.mutable_data_ptr<Real>() + first * shape.row_size();
      Real* lse = output.lse_TH.mutable_data_ptr<Real>() + first * shape.heads;
      parallel_ranges({0, part.positions.size()}, kQueryGrain, [&](Range some) {
        SparseAttentionWork<Real> work(shape, pools_TB.size(1));
        work.forward(queries, some, rows, o, lse);
      });
    }
  });
  return output;
}

at::Tensor selected_attention_backward(const SparseAttentionShape& shape, const TokenLayout& layout,
                                       const Range& piece, const SelectedGradientInputs& inputs,
                                       const RowStore& latents, const RowStore& sums) {
  const c10::NoGradGuard no_grad;
  check_inputs(shape, piece, inputs.q_THR, inputs.pools_TB);
  for (const at::Tensor& tensor : {inputs.o_THR, inputs.d_o_THR}) {
    LONGSPAN_CHECK(tensor.is_contiguous() && tensor.sizes() == inputs.q_THR.sizes(), "o or dO ",
                   tensor.toString(), " ", tensor.sizes());
  }
  if constexpr (kBuiltWithCuda) {
    if (inputs.q_THR.is_cuda()) {
      return gpu_selected_attention_backward(shape, layout, piece, inputs, latents, sums);
    }
  }
  at::Tensor d_q = at::empty_like(inputs.q_THR);
  for_real_type(d_q.scalar_type(), [&]<typename Real>() {
    for (const DocumentPart& part : layout.document_parts(piece)) {
      PartBackward<Real>(shape, layout, piece, part, inputs, latents, sums,
                         d_q.mutable_data_ptr<Real>())
          .run();
    }
  });
  return d_q;
}

}  // namespace longspan
