// Private to experts/: the messages of one chunk of an expert exchange.
//
//   ChunkMessages messages(dispatch, chunk, group, call);
//   ExpertBatch batch = messages.fetch(x_TD, weights_TK);       // rows come to their experts
//   at::Tensor dy_RD = messages.fetch_rows(dy_TD, 3);           // in the same order
//   messages.return_rows(y_RD, 4, y_TD);                        // and are added at home
//
// The rows of a batch stand by sender, in rank order; the own ones lie in their place and do not
// travel. Offsets of tags: 0 to 2 in fetch, then as given.
// Contract: collective over the group, all ranks in the same order. Blocks until its messages are
// there.
#pragma once

#include "experts/expert_dispatch.h"
#include "experts/expert_exchange.h"

namespace longspan {

class ChunkMessages {
 public:
  ChunkMessages(const ExpertDispatch& dispatch, int64_t chunk, Communicator* group,
                const ExpertCall& call);

  ExpertBatch fetch(const at::Tensor& x_TD, const at::Tensor& weights_TK) const;
  at::Tensor fetch_rows(const at::Tensor& values_TD, int64_t tag_offset) const;
  // sum[token of row] += row, rank by rank.
  void return_rows(const at::Tensor& rows_RD, int64_t tag_offset, const at::Tensor& sum_TD) const;
  // values[place of pair] = the pair's value.
  void return_pairs(const at::Tensor& pairs_P, int64_t tag_offset,
                    const at::Tensor& values_TK) const;

 private:
  // Every rank's part of what is packed rank by rank: where it begins.
  using Offsets = std::vector<int64_t>;

  at::Tensor to_experts(const std::vector<at::Tensor>& outgoing, const Offsets& incoming,
                        int64_t tag_offset, const char* what) const;
  std::vector<at::Tensor> to_home(const at::Tensor& incoming, const Offsets& offsets, bool pairs,
                                  int64_t tag_offset, const char* what) const;
  const OutgoingRows& outgoing(int64_t rank) const { return dispatch_.outgoing(chunk_, rank); }
  int64_t ranks() const { return dispatch_.shape().ranks; }

  const ExpertDispatch& dispatch_;
  int64_t chunk_;
  Communicator* group_;
  const ExpertCall& call_;
  int64_t rank_;
  Offsets row_offsets_;
  Offsets pair_offsets_;
  std::vector<int64_t> pair_rows_;  // of each incoming pair
};

}  // namespace longspan
