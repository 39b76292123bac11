// The seam between longspan and whatever moves bytes between ranks.
//
// Why: ranks may be threads of one process (thread_communicator.h), processes of one or many hosts
// (mpi_communicator.h), or a test wrapper that delays and drops (fault_communicator.h). Everything
// above knows this interface alone, and one test file (communicator_test.cpp) holds for all of
// them.
//
//   auto incoming = comm.receive(left, tag, op, buffer);       // posts, never blocks
//   auto outgoing = comm.send(right, tag, op, data);           // posts, never blocks
//   incoming.wait();  outgoing.wait();                         // buffers may be touched again
//   comm.all_reduce_sum(std::span(norms), op);
//
// Contract
// - One communicator object per rank, used by that rank's thread alone (abort() excepted).
//   Different ranks' objects may be used at the same time.
// - Point to point: messages match by (source, destination, tag), first posted first matched;
//   sizes must be equal on both sides (InternalError otherwise). Zero-size messages are allowed
//   and are delivered. A rank does not send to itself. A buffer belongs to the operation until
//   wait() returns. A send completes without its receive being posted as far as the program's
//   order goes: two ranks that both send and wait, then both receive, never deadlock, whatever
//   the sizes (a wait on a send that nobody has asked for yet keeps a copy; receives posted
//   first, or waited for first, avoid it).
// - Collectives are called by all ranks of the communicator in the same order, with the same `op`
//   and sizes (InternalError otherwise). Sums have a fixed order (rank 0 first), so the same
//   inputs give the same bits on every rank and every run. In a maximum a NaN wins.
// - `op` names the operation in errors and in the stall report ("attention out, layer 3, chunk
//   1"). A rank that waits longer than the stall timeout throws DistributedError naming itself,
//   the operation, the peer and, where it is known, what the peer is doing instead. After that,
//   or after abort(), every operation of the communicator, its parents and its subgroups throws
//   on all ranks.
// - `activity(op)` tells others what this rank is doing outside of communication, for those
//   reports.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace longspan {

using ConstBytes = std::span<const std::byte>;
using MutableBytes = std::span<std::byte>;

// An operation in flight. Move-only; a default-made one is complete. done() never blocks and never
// forces a send to complete; wait() does. Destroying a Work that has not been waited for waits for
// it and swallows errors (the next operation throws them again); while an exception unwinds the
// stack it is given up instead, so that the failure reaches the launcher at once.
class Work {
 public:
  struct State {
    virtual ~State() = default;
    virtual bool done() = 0;
    // Either way the buffer is the caller's again, also when an exception leaves wait().
    virtual void wait() = 0;
    virtual void abandon() = 0;
  };
  Work() = default;
  explicit Work(std::unique_ptr<State> state) : state_(std::move(state)) {}
  Work(Work&&) noexcept = default;
  Work& operator=(Work&& other) noexcept;
  ~Work();

  bool done() { return !state_ || state_->done(); }
  void wait();

 private:
  void finish() noexcept;

  std::unique_ptr<State> state_;
};

struct IncomingMessage {
  int source = 0;
  int64_t tag = 0;
  MutableBytes data;
};
struct OutgoingMessage {
  int destination = 0;
  int64_t tag = 0;
  ConstBytes data;
};

class Communicator {
 public:
  virtual ~Communicator() = default;

  virtual int rank() const = 0;
  virtual int size() const = 0;
  virtual std::string transport() const = 0;  // "thread", "mpi": printed at start

  virtual Work send(int destination, int64_t tag, std::string_view op, ConstBytes data) = 0;
  virtual Work receive(int source, int64_t tag, std::string_view op, MutableBytes data) = 0;
  // The same as receive() for all of `incoming`, then send() for all of `outgoing`, with one Work
  // for the round; a transport may move the messages of a round together.
  virtual Work exchange(std::span<const IncomingMessage> incoming,
                        std::span<const OutgoingMessage> outgoing, std::string_view op);

  // The ranks listed, in that order, as a communicator of their own; called by all ranks of this
  // one with the same arguments in the same order. Null where this rank is not listed.
  virtual std::unique_ptr<Communicator> subgroup(const std::vector<int>& ranks,
                                                 std::string_view name) = 0;

  virtual void barrier(std::string_view op) = 0;
  virtual void broadcast(int root, MutableBytes data, std::string_view op) = 0;
  // `gathered` holds size() blocks of `own`.size() bytes, in rank order; `own` may be its own block
  // there.
  virtual void all_gather(ConstBytes own, MutableBytes gathered, std::string_view op) = 0;
  // `input` holds size() blocks of `own`.size() elements; own = sum over ranks of this rank's
  // block.
  virtual void reduce_scatter(std::span<const float> input, std::span<float> own,
                              std::string_view op) = 0;
  virtual void reduce_scatter(std::span<const double> input, std::span<double> own,
                              std::string_view op) = 0;
  virtual void all_reduce_sum(std::span<double> values, std::string_view op) = 0;
  virtual void all_reduce_max(std::span<double> values, std::string_view op) = 0;
  // Exact sizes: send[r] goes to rank r, receive[r] comes from rank r; empty spans send nothing at
  // all, on both sides. send[rank()] and receive[rank()] must be empty: rows that stay never
  // travel.
  Work all_to_all(const std::vector<ConstBytes>& send, const std::vector<MutableBytes>& receive,
                  int64_t tag, std::string_view op);

  virtual void activity(std::string_view op) = 0;
  // Ends all waiting on every rank with `reason`. Any thread may call it.
  virtual void abort(std::string_view reason) = 0;

 protected:
  // What all transports check alike (InternalError).
  void check_peer(int peer, std::string_view op) const;
  void check_root(int root, std::string_view op) const;
  void check_blocks(size_t whole, size_t block, std::string_view op) const;
  // This rank's place in the list, -1 if it is not there; the ranks must exist and be distinct.
  int place_in_subgroup(const std::vector<int>& ranks, std::string_view name) const;
};

}  // namespace longspan
