#include "sparse_attention/pool_ranking.h"

#include <ATen/Parallel.h>
#include <ATen/ops/full.h>

#include <algorithm>
#include <vector>

#include "base/check.h"
#include "device/device.h"
#include "kernels/cpu/index_scoring.h"
#include "layers/parallel_ranges.h"
#include "layers/real_types.h"
#include "sparse_attention/gpu_sparse_attention.h"

namespace longspan {
namespace {

// Neighbouring queries that one thread scores at a time.
constexpr int64_t kQueryBlock = 64;

template <typename Real>
class CpuPoolRanking final : public PoolRanking {
 public:
  CpuPoolRanking(const IndexShape& shape, int64_t work_bytes) : shape_(shape) {
    const int64_t threads = at::get_num_threads();
    for (int64_t thread = 0; thread < threads; ++thread) {
      scorers_.push_back(std::make_unique<IndexScorer<Real>>(shape, work_bytes / threads));
    }
  }

  void score(const RankedQueries& queries, std::span<const RankedPools> pools) override {
    const int64_t rows = queries.q_TJD.size(0);
    const int64_t blocks = (rows + kQueryBlock - 1) / kQueryBlock;
    const auto threads = std::ssize(scorers_);
    // Blocks are dealt out in turn: later queries see more pools.
    parallel_ranges({0, threads}, 1, [&](Range slots) {
      for (int64_t slot = slots.begin; slot < slots.end; ++slot) {
        for (int64_t block = slot; block < blocks; block += threads) {
          const int64_t row = block * kQueryBlock;
          score_block(queries, {row, std::min(rows, row + kQueryBlock)}, pools,
                      *scorers_[static_cast<size_t>(slot)]);
        }
      }
    });
  }

  void merge(const PoolLists& from, const PoolLists& into) override {
    merge_top_pools(shape_, into.pools_TB.size(0), from.scores_TB.const_data_ptr<Real>(),
                    from.pools_TB.const_data_ptr<int32_t>(),
                    into.scores_TB.mutable_data_ptr<Real>(),
                    into.pools_TB.mutable_data_ptr<int32_t>());
  }

 private:
  void score_block(const RankedQueries& queries, const Range& rows,
                   std::span<const RankedPools> pools, IndexScorer<Real>& scorer) const {
    const IndexQueries<Real> block{
        queries.q_TJD.const_data_ptr<Real>() + rows.begin * shape_.heads * shape_.width,
        queries.weights_TJ.const_data_ptr<Real>() + rows.begin * shape_.heads,
        queries.first_position + rows.begin,
        rows.size(),
        queries.lists.scores_TB.mutable_data_ptr<Real>() + rows.begin * shape_.top_pools,
        queries.lists.pools_TB.mutable_data_ptr<int32_t>() + rows.begin * shape_.top_pools};
    for (const RankedPools& some : pools) {
      scorer.score(block,
                   {some.keys_PD.const_data_ptr<Real>(), some.first_pool, some.keys_PD.size(0)});
    }
  }

  const IndexShape shape_;
  std::vector<std::unique_ptr<IndexScorer<Real>>> scorers_;  // one for each thread
};

void select_row(const IndexShape& shape, int64_t position, const int32_t* list, int64_t width,
                int32_t* row) {
  if (!shape.must_choose(position)) {
    for (int64_t pool = 0; pool < shape.visible_pools(position); ++pool) {
      row[pool] = static_cast<int32_t>(pool);
    }
    return;
  }
  LONGSPAN_CHECK(list != nullptr, "the query at document position ", position,
                 " must choose, but there is no list");
  std::copy_n(list, width, row);
  std::sort(row, row + width);
  LONGSPAN_CHECK(row[0] >= 0, "the query at document position ", position,
                 " has fewer candidates than it chooses: the plan leaves keys out");
}

}  // namespace

std::unique_ptr<PoolRanking> make_pool_ranking(const IndexShape& shape,
                                               const at::TensorOptions& options,
                                               int64_t work_bytes) {
  const at::ScalarType type = at::typeMetaToScalarType(options.dtype());
  if constexpr (kBuiltWithCuda) {
    if (!options.device().is_cpu()) return gpu_pool_ranking(shape, options, work_bytes);
  }
  return for_real_type(type, [&]<typename Real>() -> std::unique_ptr<PoolRanking> {
    return std::make_unique<CpuPoolRanking<Real>>(shape, work_bytes);
  });
}

bool scoring_is_fast(const IndexShape& shape, at::ScalarType type, at::Device device) {
  if constexpr (kBuiltWithCuda) {
    if (!device.is_cpu()) return gpu_scoring_is_fast(shape, type);
  }
  return true;
}

at::Tensor selected_pools(const IndexShape& shape, const TokenLayout& layout, const Range& piece,
                          const at::Tensor& lists_TB, int64_t width, at::Device device) {
  if constexpr (kBuiltWithCuda) {
    if (!device.is_cpu()) {
      return gpu_selected_pools(shape, layout, piece, lists_TB, width, device);
    }
  }
  at::Tensor selected = at::full({piece.size(), width}, -1, at::kInt);
  int32_t* rows = selected.mutable_data_ptr<int32_t>();
  const int32_t* lists = lists_TB.defined() ? lists_TB.const_data_ptr<int32_t>() : nullptr;
  for (const DocumentPart& part : layout.document_parts(piece)) {
    for (int64_t at = part.line.begin; at < part.line.end; ++at) {
      const int64_t row = at - piece.begin;
      select_row(shape, part.positions.begin + at - part.line.begin,
                 lists == nullptr ? nullptr : lists + row * width, width, rows + row * width);
    }
  }
  return selected;
}

}  // namespace longspan
