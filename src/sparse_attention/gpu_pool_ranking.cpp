#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <vector>

#include "base/check.h"
#include "base/error.h"
#include "device/device.h"
#include "device/device_types.h"
#include "kernels/cuda/index_scoring.h"
#include "kernels/cuda/pooled_keys.h"
#include "kernels/cuda/top_pools.h"
#include "sparse_attention/gpu_sparse_attention.h"

namespace longspan {
namespace {

using cuda::Accumulate;

// One wave of blocks of a GPU with 132 multiprocessors (kernels/cuda/index_scoring.cu), and long
// enough that neither its start nor the sorting of lists counts: 66 MiB of float32.
constexpr int64_t kMostQueries = 528;
constexpr int64_t kMostPools = 32768;
constexpr int64_t kFewestPools = 256;

struct ScoreBlocks {
  int64_t queries = kMostQueries;
  int64_t pools = kMostPools;
};

ScoreBlocks score_blocks(int64_t element_bytes, int64_t bound_bytes) {
  ScoreBlocks blocks;
  const auto bytes = [&] { return blocks.queries * blocks.pools * element_bytes; };
  while (bytes() > bound_bytes && blocks.pools > kFewestPools) blocks.pools /= 2;
  while (bytes() > bound_bytes && blocks.queries > 1) blocks.queries /= 2;
  if (bytes() > bound_bytes) {
    throw UserError(text("index scoring on a GPU needs a work buffer of at least ", bytes(),
                         " bytes, but ", bound_bytes,
                         " are allowed: raise the bound of its work buffer"));
  }
  return blocks;
}

template <typename T>
class GpuPoolRanking final : public PoolRanking {
 public:
  GpuPoolRanking(const IndexShape& shape, const at::TensorOptions& options, int64_t work_bytes)
      : shape_(shape),
        options_(options.dtype(accumulate_type(at::typeMetaToScalarType(options.dtype())))),
        blocks_(score_blocks(sizeof(A), work_bytes)) {
    if (shape.top_pools > cuda::kMostTopPools) {
      throw UserError(text("an index that selects ", shape.top_pools,
                           " pools does not run on the GPU, whose lists hold ", cuda::kMostTopPools,
                           ": set layout.device = \"cpu\""));
    }
  }

  void score(const RankedQueries& queries, std::span<const RankedPools> pools) override {
    const int64_t rows = queries.q_TJD.size(0);
    // Queries before this one need not choose.
    const int64_t least_position = (shape_.top_pools + 1) * shape_.pool_tokens - 1;
    for (int64_t row = std::max<int64_t>(0, least_position - queries.first_position); row < rows;
         row += blocks_.queries) {
      const Range block{row, std::min(rows, row + blocks_.queries)};
      for (const RankedPools& some : pools) score_block(queries, block, some);
    }
  }

  void merge(const PoolLists& from, const PoolLists& into) override {
    cuda::merge_top_pools<A>(
        shape_, into.pools_TB.size(0),
        {device_data<const A>(from.scores_TB), device_data<int32_t>(from.pools_TB)},
        {device_data<A>(into.scores_TB), device_data<int32_t>(into.pools_TB)}, current_stream());
  }

 private:
  using A = Accumulate<T>;

  void score_block(const RankedQueries& queries, const Range& rows, const RankedPools& pools) {
    const int64_t position = queries.first_position + rows.begin;
    const int64_t seen = std::min(
        pools.keys_PD.size(0), shape_.visible_pools(position + rows.size() - 1) - pools.first_pool);
    const cuda::IndexQueryRows<T> of_queries{
        device_data<const T>(queries.q_TJD) + rows.begin * shape_.heads * shape_.width,
        device_data<const T>(queries.weights_TJ) + rows.begin * shape_.heads, position,
        rows.size()};
    const cuda::TopPoolLists<A> lists{
        device_data<A>(queries.lists.scores_TB) + rows.begin * shape_.top_pools,
        device_data<int32_t>(queries.lists.pools_TB) + rows.begin * shape_.top_pools};
    for (int64_t first = 0; first < seen; first += blocks_.pools) {
      const int64_t count = std::min(blocks_.pools, seen - first);
      const cuda::IndexScoreBlock<A> scores{work_buffer(rows.size() * count), count};
      const int64_t first_pool = pools.first_pool + first;
      cuda::index_scores<T>(
          shape_, of_queries,
          {device_data<const T>(pools.keys_PD) + first * shape_.width, first_pool, count}, scores,
          current_stream());
      cuda::enter_top_pools<A>(shape_, scores, position, rows.size(), first_pool, count, lists,
                               current_stream());
    }
  }

  A* work_buffer(int64_t elements) {
    if (!buffer_.defined() || buffer_.numel() < elements) buffer_ = at::empty({elements}, options_);
    return device_data<A>(buffer_);
  }

  const IndexShape shape_;
  const at::TensorOptions options_;
  const ScoreBlocks blocks_;
  at::Tensor buffer_;
};

std::vector<int32_t> positions_of(const TokenLayout& layout, const Range& piece) {
  std::vector<int32_t> positions;
  positions.reserve(static_cast<size_t>(piece.size()));
  for (const DocumentPart& part : layout.document_parts(piece)) {
    for (int64_t at = part.positions.begin; at < part.positions.end; ++at) {
      positions.push_back(static_cast<int32_t>(at));
    }
  }
  return positions;
}

}  // namespace

std::unique_ptr<PoolRanking> gpu_pool_ranking(const IndexShape& shape,
                                              const at::TensorOptions& options,
                                              int64_t work_bytes) {
  return for_device_type(at::typeMetaToScalarType(options.dtype()),
                         [&]<typename T>() -> std::unique_ptr<PoolRanking> {
                           return std::make_unique<GpuPoolRanking<T>>(shape, options, work_bytes);
                         });
}

at::Tensor gpu_selected_pools(const IndexShape& shape, const TokenLayout& layout,
                              const Range& piece, const at::Tensor& lists_TB, int64_t width,
                              at::Device device) {
  at::Tensor selected =
      at::empty({piece.size(), width}, at::TensorOptions(at::kInt).device(device));
  if (selected.numel() == 0) return selected;
  const std::vector<int32_t> positions = positions_of(layout, piece);
  const at::Tensor on_device = upload(std::span<const int32_t>(positions), device);
  cuda::selected_pools(shape, device_data<const int32_t>(on_device), piece.size(),
                       lists_TB.defined() ? device_data<const int32_t>(lists_TB) : nullptr, width,
                       device_data<int32_t>(selected), current_stream());
  return selected;
}

void gpu_pool_keys(const at::Tensor& keys, const at::Tensor& gates, int64_t pool_tokens,
                   const at::Tensor& pooled) {
  for_device_type(keys.scalar_type(), [&]<typename T>() {
    cuda::pool_keys<T>(device_data<const T>(keys), device_data<const T>(gates), pooled.size(0),
                       pool_tokens, pooled.size(1), device_data<T>(pooled), current_stream());
  });
}

at::Tensor gpu_selected_flags(const TokenLayout& layout, const PoolAxis& axis, const Range& piece,
                              const at::Tensor& pools_TB, const Range& pools) {
  std::vector<int64_t> bases;
  for (const DocumentPart& part : layout.document_parts(piece)) {
    bases.insert(bases.end(), static_cast<size_t>(part.line.size()),
                 axis.first_pool(part.document) - pools.begin);
  }
  const at::Tensor on_device = upload(std::span<const int64_t>(bases), pools_TB.device());
  const at::Tensor flags =
      at::zeros({pools.size()}, at::TensorOptions(at::kByte).device(pools_TB.device()));
  cuda::mark_selected_pools(device_data<const int32_t>(pools_TB), pools_TB.size(0),
                            pools_TB.size(1), device_data<const int64_t>(on_device),
                            device_data<uint8_t>(flags), current_stream());
  return flags.cpu();
}

}  // namespace longspan
