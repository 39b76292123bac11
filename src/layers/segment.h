// A stretch of a layer between two exchanges: forward now, backward later or never.
//
// Why: the executor decides what is kept between forward and backward. A segment runs a function on
// detached inputs; with `record` it keeps the graph and so what the operations saved, with `run` it
// keeps nothing. Recomputing is running the same function on the same inputs again, and gives the
// same bits. Nothing inside a segment communicates.
//
//   Segment segment = Segment::record(body, {x_TC});    // outputs() for the exchange
//   segment.release_outputs();                                    // if nobody else needs them
//   std::vector<at::Tensor> dx = segment.backward({dq, dk, dv});  // frees the graph
//
// Inputs and outputs cross the border without autograd history. Storages are counted once however
// many tensors share them: StorageSet unites several segments and the executor's own tensors.
// Thread contract: one rank, on its thread. CPU backward runs on the calling thread.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <unordered_map>
#include <vector>

namespace at {
class Tensor;
}

namespace longspan {

// Distinct storages and their bytes. It holds none of them: use it while they live.
class StorageSet {
 public:
  void add(const at::Tensor& tensor);
  int64_t bytes() const { return bytes_; }

 private:
  std::unordered_map<const void*, int64_t> storages_;
  int64_t bytes_ = 0;
};

class Segment {
 public:
  using Body = std::function<std::vector<at::Tensor>(const std::vector<at::Tensor>& inputs)>;

  // Runs `body` with grad mode on and keeps what backward needs.
  static Segment record(const Body& body, const std::vector<at::Tensor>& inputs);
  // Runs `body` with grad mode off and keeps nothing.
  static std::vector<at::Tensor> run(const Body& body, const std::vector<at::Tensor>& inputs);

  Segment();  // records nothing; backward is an InternalError
  Segment(Segment&&) noexcept;
  Segment& operator=(Segment&&) noexcept;
  ~Segment();

  bool recorded() const { return graph_ != nullptr; }
  const std::vector<at::Tensor>& outputs() const;
  void release_outputs();

  // One gradient per output, in order, undefined for one that has none (it is not looked at, or
  // does not depend on the inputs, as an index); one per input comes back. Frees everything the
  // segment holds.
  std::vector<at::Tensor> backward(const std::vector<at::Tensor>& output_gradients);

  // Everything the segment keeps alive: inputs, outputs not released, saved activations.
  void add_storages(StorageSet& set) const;
  int64_t stored_bytes() const;

 private:
  struct Graph;
  std::unique_ptr<Graph> graph_;
};

}  // namespace longspan
