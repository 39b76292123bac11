#include "linear_attention/state_chain.h"

#include <ATen/ops/baddbmm.h>
#include <ATen/ops/empty.h>

#include "base/check.h"

namespace longspan {
namespace {

bool crosses(const TokenLayout& layout, int64_t line_position) {
  if (line_position <= 0 || line_position >= layout.num_tokens()) return false;
  return layout.document(layout.document_at(line_position)).begin < line_position;
}

MutableBytes bytes_of(const at::Tensor& tensor) {
  LONGSPAN_CHECK(tensor.is_contiguous(), "a message of sizes ", tensor.sizes(),
                 " is not contiguous");
  return {static_cast<std::byte*>(tensor.data_ptr()), tensor.nbytes()};
}

at::Tensor heads_in(const at::Tensor& tensor, const Range& heads) {
  return tensor.narrow(0, heads.begin, heads.size());
}

}  // namespace

StateChain::StateChain(const TokenLayout& layout, int chunk, int64_t heads)
    : heads_(heads),
      enters_(crosses(layout, layout.chunk(chunk).begin)),
      leaves_(crosses(layout, layout.chunk(chunk).end)) {
  for (int rank = 0; rank < layout.num_ranks(); ++rank) {
    const Range piece = layout.piece(chunk, rank);
    Flow flow;
    flow.tokens = !piece.empty();
    flow.takes = flow.tokens && crosses(layout, piece.begin);
    flow.gives = flow.tokens && crosses(layout, piece.end);
    flow.passes = flow.takes && flow.gives &&
                  layout.document_at(piece.begin) == layout.document_at(piece.end - 1);
    flows_.push_back(flow);
  }
}

Range StateChain::heads_of(int rank) const {
  return {heads_ * rank / num_ranks(), heads_ * (rank + 1) / num_ranks()};
}

bool StateChain::sends_map(int rank, Direction direction) const {
  return direction == Direction::kForward ? gives(rank) : takes(rank);
}

bool StateChain::wants_state(int rank, Direction direction) const {
  return direction == Direction::kForward ? takes(rank) : gives(rank);
}

StateChain::Result StateChain::forward(const at::Tensor& map, const at::Tensor& share,
                                       const StateSizes& sizes, Communicator& comm, int64_t tag,
                                       const std::string& op) const {
  LONGSPAN_CHECK(share.defined() == enters_, op, ": the chunk ", enters_ ? "needs" : "takes no",
                 " state of the chunk before");
  return pass(Direction::kForward, map, share, sizes, comm, tag, op);
}

StateChain::Result StateChain::backward(const at::Tensor& map, const at::Tensor& share,
                                        const StateSizes& sizes, Communicator& comm, int64_t tag,
                                        const std::string& op) const {
  LONGSPAN_CHECK(share.defined() == leaves_, op, ": the chunk ", leaves_ ? "needs" : "takes no",
                 " gradient of the state after it");
  return pass(Direction::kBackward, map, share, sizes, comm, tag, op);
}

StateChain::Result StateChain::pass(Direction direction, const at::Tensor& map,
                                    const at::Tensor& share, const StateSizes& sizes,
                                    Communicator& comm, int64_t tag, const std::string& op) const {
  const std::vector<at::Tensor> maps = gather_maps(direction, map, sizes, comm, tag, op);
  Result result;
  result.share = share;
  const std::vector<at::Tensor> states = fold(direction, maps, result.share);
  // A share that is part of a map would keep all of it alive.
  if (result.share.defined() && result.share.nbytes() < result.share.storage().nbytes()) {
    result.share = result.share.clone();
  }
  result.state = scatter_states(direction, states, sizes, comm, tag + 1, op);
  return result;
}

// By rank that sends one: its map of this rank's heads.
std::vector<at::Tensor> StateChain::gather_maps(Direction direction, const at::Tensor& map,
                                                const StateSizes& sizes, Communicator& comm,
                                                int64_t tag, const std::string& op) const {
  const Range own_heads = heads_of(comm.rank());
  std::vector<at::Tensor> maps(flows_.size());
  std::vector<ConstBytes> send(flows_.size());
  std::vector<MutableBytes> receive(flows_.size());
  LONGSPAN_CHECK(map.defined() == sends_map(comm.rank(), direction), op,
                 ": a map is missing, or one too many");
  for (int peer = 0; peer < num_ranks(); ++peer) {
    const auto idx = static_cast<size_t>(peer);
    const int64_t columns = sizes.value_width + (passes(peer) ? sizes.key_width : 0);
    if (peer == comm.rank()) {
      if (!map.defined()) continue;
      LONGSPAN_CHECK(map.size(0) == heads_ && map.size(2) == columns, op, ": a map of sizes ",
                     map.sizes(), " for ", heads_, " heads and ", columns, " columns");
      maps[idx] = heads_in(map, own_heads);
      continue;
    }
    if (map.defined() && !heads_of(peer).empty())
      send[idx] = bytes_of(heads_in(map, heads_of(peer)));
    if (sends_map(peer, direction)) {
      maps[idx] = at::empty({own_heads.size(), sizes.key_width, columns}, sizes.options);
      receive[idx] = bytes_of(maps[idx]);
    }
  }
  comm.all_to_all(send, receive, tag, text(op, ", maps of states")).wait();
  return maps;
}

// By rank that wants one: the state of this rank's heads; `state` moves on from one end of the
// chunk to the other.
std::vector<at::Tensor> StateChain::fold(Direction direction, const std::vector<at::Tensor>& maps,
                                         at::Tensor& state) const {
  std::vector<at::Tensor> states(flows_.size());
  for (int step = 0; step < num_ranks(); ++step) {
    const int rank = direction == Direction::kForward ? step : num_ranks() - 1 - step;
    const auto idx = static_cast<size_t>(rank);
    if (!flow(rank).tokens) continue;
    if (wants_state(rank, direction)) {
      LONGSPAN_CHECK(state.defined(), "rank ", rank, " wants a state that nobody left");
      states[idx] = state;
    }
    if (!sends_map(rank, direction)) {
      state = at::Tensor();
    } else if (passes(rank)) {
      const int64_t K = maps[idx].size(1);
      const int64_t V = maps[idx].size(2) - K;
      state = at::baddbmm(maps[idx].narrow(2, 0, V), maps[idx].narrow(2, V, K), state);
    } else {
      state = maps[idx];
    }
  }
  return states;
}

at::Tensor StateChain::scatter_states(Direction direction, const std::vector<at::Tensor>& states,
                                      const StateSizes& sizes, Communicator& comm, int64_t tag,
                                      const std::string& op) const {
  const int rank = comm.rank();
  at::Tensor own;
  if (wants_state(rank, direction)) {
    own = at::empty({heads_, sizes.key_width, sizes.value_width}, sizes.options);
  }
  std::vector<at::Tensor> outgoing(flows_.size());
  std::vector<ConstBytes> send(flows_.size());
  std::vector<MutableBytes> receive(flows_.size());
  for (int peer = 0; peer < num_ranks(); ++peer) {
    const auto idx = static_cast<size_t>(peer);
    if (peer == rank) {
      if (own.defined()) heads_in(own, heads_of(rank)).copy_(states[idx]);
      continue;
    }
    if (states[idx].defined()) {
      outgoing[idx] = states[idx].contiguous();
      send[idx] = bytes_of(outgoing[idx]);
    }
    if (own.defined()) receive[idx] = bytes_of(heads_in(own, heads_of(peer)));
  }
  comm.all_to_all(send, receive, tag, text(op, ", incoming states")).wait();
  return own;
}

}  // namespace longspan
