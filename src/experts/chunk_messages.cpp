#include "experts/chunk_messages.h"

#include <ATen/ops/empty.h>

#include <algorithm>

#include "base/check.h"
#include "experts/row_moves.h"

namespace longspan {
namespace {

ConstBytes bytes_of(const at::Tensor& tensor) {
  return {static_cast<const std::byte*>(tensor.const_data_ptr()), tensor.nbytes()};
}

MutableBytes writable_bytes_of(const at::Tensor& tensor) {
  return {static_cast<std::byte*>(tensor.mutable_data_ptr()), tensor.nbytes()};
}

at::Tensor part_of(const at::Tensor& packed, const std::vector<int64_t>& offsets, int64_t rank) {
  const auto at = static_cast<size_t>(rank);
  return packed.narrow(0, offsets[at], offsets[at + 1] - offsets[at]);
}

}  // namespace

ChunkMessages::ChunkMessages(const ExpertDispatch& dispatch, int64_t chunk, Communicator* group,
                             const ExpertCall& call)
    : dispatch_(dispatch),
      chunk_(chunk),
      group_(group),
      call_(call),
      rank_(group != nullptr ? group->rank() : 0),
      row_offsets_{0},
      pair_offsets_{0} {
  int64_t row = 0;
  for (int64_t from = 0; from < ranks(); ++from) {
    const std::vector<int64_t> rows = dispatch.incoming(chunk, from);
    for (int64_t width = std::ssize(rows); width >= 1; --width) {
      for (int64_t i = 0; i < rows[static_cast<size_t>(width - 1)]; ++i, ++row) {
        pair_rows_.insert(pair_rows_.end(), static_cast<size_t>(width), row);
      }
    }
    row_offsets_.push_back(row);
    pair_offsets_.push_back(std::ssize(pair_rows_));
  }
}

ExpertBatch ChunkMessages::fetch(const at::Tensor& x_TD, const at::Tensor& weights_TK) const {
  const int32_t* ids = dispatch_.ids_TK().const_data_ptr<int32_t>();
  const int64_t experts_per_rank = dispatch_.shape().experts_per_rank();
  std::vector<at::Tensor> experts;
  std::vector<at::Tensor> weights;
  for (int64_t to = 0; to < ranks(); ++to) {
    const std::vector<int64_t>& places = outgoing(to).places;
    experts.push_back(at::empty({std::ssize(places)}, dispatch_.ids_TK().options()));
    int32_t* own_index = experts.back().mutable_data_ptr<int32_t>();
    for (size_t pair = 0; pair < places.size(); ++pair) {
      own_index[pair] = static_cast<int32_t>(ids[places[pair]] - to * experts_per_rank);
    }
    weights.push_back(gathered(weights_TK.view({-1}), places));
  }
  ExpertBatch batch;
  batch.x_RD = fetch_rows(x_TD, 0);
  batch.weights_P = to_experts(weights, pair_offsets_, 1, "weights");
  const at::Tensor indices = to_experts(experts, pair_offsets_, 2, "ids");
  const int32_t* values = indices.const_data_ptr<int32_t>();
  batch.experts.assign(values, values + indices.numel());
  batch.rows = pair_rows_;
  return batch;
}

at::Tensor ChunkMessages::fetch_rows(const at::Tensor& values_TD, int64_t tag_offset) const {
  std::vector<at::Tensor> rows;
  for (int64_t to = 0; to < ranks(); ++to) rows.push_back(gathered(values_TD, outgoing(to).tokens));
  return to_experts(rows, row_offsets_, tag_offset, "rows");
}

void ChunkMessages::return_rows(const at::Tensor& rows_RD, int64_t tag_offset,
                                const at::Tensor& sum_TD) const {
  const auto returned = to_home(rows_RD, row_offsets_, false, tag_offset, "results");
  for (int64_t from = 0; from < ranks(); ++from) {
    add_to(returned[static_cast<size_t>(from)], outgoing(from).tokens, sum_TD);
  }
}

void ChunkMessages::return_pairs(const at::Tensor& pairs_P, int64_t tag_offset,
                                 const at::Tensor& values_TK) const {
  const auto returned = to_home(pairs_P, pair_offsets_, true, tag_offset, "gradients of weights");
  for (int64_t from = 0; from < ranks(); ++from) {
    add_to(returned[static_cast<size_t>(from)], outgoing(from).places, values_TK.view({-1}));
  }
}

at::Tensor ChunkMessages::to_experts(const std::vector<at::Tensor>& outgoing_rows,
                                     const Offsets& incoming, int64_t tag_offset,
                                     const char* what) const {
  if (group_ == nullptr) return outgoing_rows.front();
  std::vector<int64_t> shape = outgoing_rows.front().sizes().vec();
  shape[0] = incoming.back();
  at::Tensor packed = at::empty(shape, outgoing_rows.front().options());
  const auto self = static_cast<size_t>(rank_);
  part_of(packed, incoming, rank_).copy_(outgoing_rows[self]);
  std::vector<ConstBytes> send;
  std::vector<MutableBytes> receive;
  for (int64_t rank = 0; rank < ranks(); ++rank) {
    const bool stays = rank == rank_;
    send.push_back(stays ? ConstBytes{} : bytes_of(outgoing_rows[static_cast<size_t>(rank)]));
    receive.push_back(stays ? MutableBytes{} : writable_bytes_of(part_of(packed, incoming, rank)));
  }
  group_->all_to_all(send, receive, call_.tag + tag_offset, text(call_.op, ", ", what)).wait();
  return packed;
}

std::vector<at::Tensor> ChunkMessages::to_home(const at::Tensor& incoming, const Offsets& offsets,
                                               bool pairs, int64_t tag_offset,
                                               const char* what) const {
  std::vector<at::Tensor> returned;
  std::vector<ConstBytes> send;
  std::vector<MutableBytes> receive;
  for (int64_t rank = 0; rank < ranks(); ++rank) {
    const at::Tensor part = part_of(incoming, offsets, rank);
    if (rank == rank_) {
      returned.push_back(part);
      send.emplace_back();
      receive.emplace_back();
      continue;
    }
    std::vector<int64_t> shape = incoming.sizes().vec();
    shape[0] = std::ssize(pairs ? outgoing(rank).places : outgoing(rank).tokens);
    returned.push_back(at::empty(shape, incoming.options()));
    send.push_back(bytes_of(part));
    receive.push_back(writable_bytes_of(returned.back()));
  }
  if (group_ != nullptr) {
    group_->all_to_all(send, receive, call_.tag + tag_offset, text(call_.op, ", ", what)).wait();
  }
  return returned;
}

}  // namespace longspan
