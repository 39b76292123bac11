// How states of linear attention pass from rank to rank within a chunk of the line.
//
// Why: a document that lies over several ranks needs, on each of them, the state that the ranks
// before left. Each rank gives its part as an affine map S -> M S + N of states, all at once, and
// nobody waits for a neighbour. Heads are dealt out over the ranks: the owner of a head gets all
// ranks' maps for it, folds them from the state carried over from the chunk before, and sends each
// rank its incoming state. So the bytes and the work of a rank do not grow with the number of
// ranks. A document start inside a rank's piece cuts the chain: the piece then has no M.
//
//   StateChain chain(layout, chunk, heads);
//   at::Tensor map = chain.gives(rank) ? piece_map(...) : at::Tensor();  // N | M, N if cut
//   auto [state, share] = chain.forward(map, share_before, sizes, comm, tag, op);
//
// Backward is the mirror: gradients of states go from the last rank to the first, by maps D | M^T.
//
// Contract: forward and backward are collective over the ranks; they use tags [tag, tag + 2). Where
// no document crosses a border of pieces nothing is sent. All ranks conclude the same from the
// layout alone.
// Thread contract: immutable; one rank's thread.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <string>
#include <vector>

#include "comm/communicator.h"
#include "layout/token_layout.h"

namespace longspan {

struct StateSizes {
  int64_t key_width = 1;
  int64_t value_width = 1;
  at::TensorOptions options;
};

class StateChain {
 public:
  StateChain(const TokenLayout& layout, int chunk, int64_t heads);

  // A document crosses the border before, after the chunk.
  bool enters() const { return enters_; }
  bool leaves() const { return leaves_; }
  // The rank's first tokens continue a document; its last tokens' document goes on after them; it
  // holds tokens of one document alone that does both.
  bool takes(int rank) const { return flow(rank).takes; }
  bool gives(int rank) const { return flow(rank).gives; }
  bool passes(int rank) const { return flow(rank).passes; }
  // The heads whose states this rank folds and carries to the next chunk; may be none.
  Range heads_of(int rank) const;

  struct Result {
    at::Tensor state;  // [H, K, V], undefined if none is due
    at::Tensor share;  // [heads_of(rank), K, V], undefined if no document crosses
  };
  // `map` [H, K, V + K] if the rank passes, [H, K, V] if it gives alone; `share` is that of the
  // chunk before, if the chain enters. Gives the state that the rank takes, and the share after.
  Result forward(const at::Tensor& map, const at::Tensor& share, const StateSizes& sizes,
                 Communicator& comm, int64_t tag, const std::string& op) const;
  // `map` D | M^T if the rank passes, D if it takes alone; `share`: gradient of the share after.
  // Gives the gradient of the state that the rank gives, and of the share before.
  Result backward(const at::Tensor& map, const at::Tensor& share, const StateSizes& sizes,
                  Communicator& comm, int64_t tag, const std::string& op) const;

 private:
  struct Flow {
    bool tokens = false;
    bool takes = false;
    bool gives = false;
    bool passes = false;
  };
  enum class Direction { kForward, kBackward };
  const Flow& flow(int rank) const { return flows_[static_cast<size_t>(rank)]; }
  int num_ranks() const { return static_cast<int>(flows_.size()); }
  bool sends_map(int rank, Direction direction) const;
  bool wants_state(int rank, Direction direction) const;
  Result pass(Direction direction, const at::Tensor& map, const at::Tensor& share,
              const StateSizes& sizes, Communicator& comm, int64_t tag,
              const std::string& op) const;
  std::vector<at::Tensor> gather_maps(Direction direction, const at::Tensor& map,
                                      const StateSizes& sizes, Communicator& comm, int64_t tag,
                                      const std::string& op) const;
  std::vector<at::Tensor> fold(Direction direction, const std::vector<at::Tensor>& maps,
                               at::Tensor& state) const;
  at::Tensor scatter_states(Direction direction, const std::vector<at::Tensor>& states,
                            const StateSizes& sizes, Communicator& comm, int64_t tag,
                            const std::string& op) const;

  int64_t heads_ = 1;
  bool enters_ = false;
  bool leaves_ = false;
  std::vector<Flow> flows_;  // by rank
};

}  // namespace longspan
