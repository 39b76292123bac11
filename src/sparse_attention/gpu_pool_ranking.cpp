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

// One wave of blocks of a GPU with 132 multiprocessors (kernels/cuda/hopper_index_scores.cu), and
// enough pools that neither its start nor the sorting of lists counts: 132 MiB of float32.
constexpr int64_t kMostQueries = 1056;
constexpr int64_t kMostPools = 32768;
constexpr int64_t kFewestPools = 256;
constexpr int64_t kStrideMultiple = 4;  // of rows of scores: they begin at multiples of 16 bytes

struct ScoreBlocks {
  int64_t queries = kMostQueries;
  int64_t pools = kMostPools;
};

ScoreBlocks score_blocks(int64_t element_bytes, int64_t candidate_bytes, int64_t bound_bytes) {
  ScoreBlocks blocks;
  const auto bytes = [&] {
    return blocks.queries * (blocks.pools * element_bytes + candidate_bytes);
  };
  while (bytes() > bound_bytes && blocks.pools > kFewestPools) blocks.pools /= 2;
  while (bytes() > bound_bytes && blocks.queries > 1) blocks.queries /= 2;
  if (bytes() > bound_bytes) {
    throw UserError(text("index scoring on a GPU needs a work buffer of at least ", bytes(),
                         " bytes, but ", bound_bytes,
                         " are allowed: raise the bound of its work buffer"));
  }
  return blocks;
}

void require_lists(const IndexShape& shape) {
  if (shape.top_pools <= cuda::kMostTopPools) return;
  throw UserError(text("an index that selects ", shape.top_pools,
                       " pools does not run on the GPU, whose lists hold ", cuda::kMostTopPools,
                       ": set layout.device = \"cpu\""));
}

template <typename T>
class GpuPoolRanking final : public PoolRanking {
 public:
  GpuPoolRanking(const IndexShape& shape, const at::TensorOptions& options, int64_t work_bytes)
      : shape_(shape),
        options_(options.dtype(at::kByte)),
        blocks_(score_blocks(sizeof(A), cuda::candidate_bytes<A>(), work_bytes)) {
    require_lists(shape);
  }

  void score(const RankedQueries& queries, std::span<const RankedPools> pools) override {
    const int64_t rows = queries.q_TJD.size(0);
    // Queries before this one need not choose.
    const int64_t least_position = (shape_.top_pools + 1) * shape_.pool_tokens - 1;
    for (int64_t row = std::max<int64_t>(0, least_position - queries.first_position); row < rows;
         row += blocks_.queries) {
      const Range block{row, std::min(rows, row + blocks_.queries)};
      score_block(queries, block, pools);
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

  // Neighbouring pools that one launch scores.
  struct Turn {
    const T* keys;
    int64_t first_pool;
    int64_t count;
  };

  std::vector<Turn> turns_of(std::span<const RankedPools> pools, int64_t last_position) const {
    std::vector<Turn> turns;
    for (const RankedPools& some : pools) {
      const int64_t seen =
          std::min(some.keys_PD.size(0), shape_.visible_pools(last_position) - some.first_pool);
      for (int64_t first = 0; first < seen; first += blocks_.pools) {
        turns.push_back({device_data<const T>(some.keys_PD) + first * shape_.width,
                         some.first_pool + first, std::min(blocks_.pools, seen - first)});
      }
    }
    return turns;
  }

  void score_block(const RankedQueries& queries, const Range& rows,
                   std::span<const RankedPools> pools) {
    const int64_t position = queries.first_position + rows.begin;
    const cuda::IndexQueryRows<T> of_queries{
        device_data<const T>(queries.q_TJD) + rows.begin * shape_.heads * shape_.width,
        device_data<const T>(queries.weights_TJ) + rows.begin * shape_.heads, position,
        rows.size()};
    const cuda::TopPoolLists<A> lists{
        device_data<A>(queries.lists.scores_TB) + rows.begin * shape_.top_pools,
        device_data<int32_t>(queries.lists.pools_TB) + rows.begin * shape_.top_pools};
    const std::vector<Turn> turns = turns_of(pools, position + rows.size() - 1);
    int64_t widest = 0;
    for (const Turn& turn : turns) widest = std::max(widest, turn.count);
    const int64_t stride = (widest + kStrideMultiple - 1) / kStrideMultiple * kStrideMultiple;
    const Buffers work = buffers(rows.size(), stride);
    for (size_t idx = 0; idx < turns.size(); ++idx) {
      const Turn& turn = turns[idx];
      cuda::index_scores<T>(shape_, of_queries, {turn.keys, turn.first_pool, turn.count},
                            {work.scores, stride}, current_stream());
      cuda::enter_top_pools<A>(
          shape_, {work.scores, stride}, {position, rows.size(), turn.first_pool, turn.count},
          lists, work.candidates, {.first = idx == 0, .last = idx + 1 == turns.size()},
          current_stream());
    }
  }

  struct Buffers {
    A* scores;
    void* candidates;
  };

  Buffers buffers(int64_t rows, int64_t stride) {
    const int64_t score_bytes = rows * stride * static_cast<int64_t>(sizeof(A));
    const int64_t bytes = score_bytes + rows * cuda::candidate_bytes<A>();
    if (!buffer_.defined() || buffer_.numel() < bytes) {
      buffer_.reset();  // first, so that both never live together
      buffer_ = at::empty({bytes}, options_);
    }
    auto* begin = device_data<uint8_t>(buffer_);
    return {reinterpret_cast<A*>(begin), begin + score_bytes};
  }

  const IndexShape shape_;
  const at::TensorOptions options_;  // of the work buffer: bytes
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

bool gpu_scoring_is_fast(const IndexShape& shape, at::ScalarType type) {
  require_lists(shape);
  return type == at::kBFloat16 && cuda::index_scores_are_fast<cuda::Bf16>(shape);
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
