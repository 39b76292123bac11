// Brings a chunk's queries the latents that they selected, and takes the gradients back.
//
// Two ways, the same on all ranks, chosen by what travels: *gather* gives each rank all rows of its
// documents up to its own last query; *fetch* only the distinct rows that its queries selected,
// after an exchange of which ones these are. Rows of the rank's own pieces never move.
//
//   LatentExchange exchange(layout, axis, chunk, field, comm, tag, "latents, layer 3, chunk 1");
//   LatentTravel way = exchange.choose(pools_TB, LatentTravel::kAuto);
//   RowStore latents = exchange.receive(way, pools_TB, own);     // own rows and those received
//   RowStore sums = exchange.zero_gradients(own_sums);           // to be added to
//   exchange.give_back(sums, own_sums);
//
// What others give for a row is added in the order of ranks, after what the owner itself gave.
// On a GPU the flags of the selected pools are read back where rows might be fetched: the host says
// what travels.
// Contract: all but zero_gradients is collective; uses tags [tag, tag + kTagsPerLatentExchange).
// Thread contract: one rank's thread.
#pragma once

#include <ATen/core/Tensor.h>

#include <memory>
#include <string>

#include "comm/communicator.h"
#include "mix/line_exchange.h"
#include "sparse_attention/pool_axis.h"

namespace longspan {

enum class LatentTravel { kAuto, kGather, kFetch };

inline constexpr int64_t kTagsPerLatentExchange = 8;

class LatentExchange {
 public:
  // `field`: a row of latents; sums of its gradients have its accumulation type.
  LatentExchange(const TokenLayout& layout, const PoolAxis& axis, int chunk, LineField field,
                 Communicator& comm, int64_t tag, std::string op);

  // Which way has fewer bytes, over all ranks, if `travel` leaves it open.
  LatentTravel choose(const at::Tensor& pools_TB, LatentTravel travel) const;

  RowStore receive(LatentTravel travel, const at::Tensor& pools_TB, const RowStore& own);

  // Sums for all rows that receive() gave: those of own rows are `own_sums` themselves.
  RowStore zero_gradients(const RowStore& own_sums) const;
  void give_back(const RowStore& sums, const RowStore& own_sums) const;

  // Rows of other ranks that this rank's queries look at.
  std::vector<Range> gathered_lines(int rank) const;
  std::vector<Range> selected_lines(const at::Tensor& pools_TB) const;

 private:
  std::vector<std::vector<Range>> exchange_wishes(const std::vector<Range>& mine) const;

  const TokenLayout& layout_;
  const PoolAxis& axis_;
  const int chunk_;
  const LineField field_;
  const LineField sum_field_;
  Communicator& comm_;
  const int64_t tag_;
  const std::string op_;
  std::vector<Range> received_;  // lines
  std::unique_ptr<LineExchange> lines_;
};

}  // namespace longspan
