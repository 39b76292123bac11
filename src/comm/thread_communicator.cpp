#include "comm/thread_communicator.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <span>
#include <utility>

#include "base/check.h"
#include "comm/thread_world.h"

namespace longspan {

enum class CollectiveKind {
  kBarrier,
  kBroadcast,
  kAllGather,
  kReduceScatter,
  kSum,
  kMax,
  kSubgroup
};

// What one rank brings to a collective.
struct Contribution {
  CollectiveKind kind = CollectiveKind::kBarrier;
  std::string_view op;
  int64_t count = 0;   // elements or bytes; equal on all ranks
  int64_t detail = 0;  // root of a broadcast, element size of a sum; equal on all ranks
  const void* input = nullptr;
  void* output = nullptr;
  DeviceMemory::Moment ready = nullptr;  // of an input on the device
};

using Moments = std::vector<DeviceMemory::Moment>;

// The members of a communicator and the table at which they meet; guarded by the world's mutex,
// except that between meet() and part() everybody may read all contributions.
struct ThreadSubgroup {
  ThreadSubgroup(int64_t group_number, std::vector<int> world_ranks)
      : number(group_number),
        ranks(std::move(world_ranks)),
        table(ranks.size()),
        present(ranks.size(), false),
        reading(ranks.size()) {}

  const int64_t number;
  const std::vector<int> ranks;  // position in the group -> rank of the world
  std::vector<Contribution> table;
  std::vector<bool> present;
  Moments reading;                        // of ranks that part: until when they read the others
  std::shared_ptr<const Moments> parted;  // the same of the last parting, whole
  size_t arrived = 0;
  size_t left = 0;
  size_t noted = 0;  // in `reading`
  uint64_t meetings = 0;
  uint64_t partings = 0;
  std::string problem;  // contributions that do not fit together
};

namespace {

constexpr size_t kSliceElements = 512;  // of a sum in flight: stays in the first-level cache

class ThreadWork : public Work::State {
 public:
  ThreadWork(std::shared_ptr<ThreadWorld> world, ThreadWorld::Transfers round)
      : world_(std::move(world)), round_(std::move(round)) {}

  bool done() override { return world_->done(round_); }
  void wait() override { world_->wait(round_); }
  void abandon() override { world_->abandon(round_); }

 private:
  std::shared_ptr<ThreadWorld> world_;
  ThreadWorld::Transfers round_;
};

class ThreadCommunicator : public Communicator {
 public:
  ThreadCommunicator(std::shared_ptr<ThreadWorld> world, std::shared_ptr<ThreadSubgroup> group,
                     int rank)
      : world_(std::move(world)), group_(std::move(group)), rank_(rank) {}

  int rank() const override { return rank_; }
  int size() const override { return static_cast<int>(group_->ranks.size()); }
  std::string transport() const override { return "thread"; }

  Work send(int destination, int64_t tag, std::string_view op, ConstBytes data) override {
    const OutgoingMessage message{destination, tag, data};
    return exchange({}, {&message, 1}, op);
  }
  Work receive(int source, int64_t tag, std::string_view op, MutableBytes data) override {
    const IncomingMessage message{source, tag, data};
    return exchange({&message, 1}, {}, op);
  }
  Work exchange(std::span<const IncomingMessage> incoming,
                std::span<const OutgoingMessage> outgoing, std::string_view op) override;

  std::unique_ptr<Communicator> subgroup(const std::vector<int>& ranks,
                                         std::string_view name) override;
  void barrier(std::string_view op) override;
  void broadcast(int root, MutableBytes data, std::string_view op) override;
  void all_gather(ConstBytes own, MutableBytes gathered, std::string_view op) override;
  void reduce_scatter(std::span<const float> input, std::span<float> own,
                      std::string_view op) override {
    reduce_block(input, own, op);
  }
  void reduce_scatter(std::span<const double> input, std::span<double> own,
                      std::string_view op) override {
    reduce_block(input, own, op);
  }
  void all_reduce_sum(std::span<double> values, std::string_view op) override {
    all_reduce(CollectiveKind::kSum, values, op, [](double a, double b) { return a + b; });
  }
  void all_reduce_max(std::span<double> values, std::string_view op) override {
    all_reduce(CollectiveKind::kMax, values, op,
               [](double a, double b) { return std::isnan(a) || a > b ? a : b; });
  }

  void activity(std::string_view op) override { world_->set_activity(world_rank(rank_), op); }
  void abort(std::string_view reason) override { world_->fail(reason); }

 private:
  DeviceMemory::Moment moment_of(const void* address) const {
    return world_->on_device(address) ? world_->device_memory()->moment() : nullptr;
  }
  int world_rank(int position) const { return group_->ranks[static_cast<size_t>(position)]; }

  void meet(const Contribution& mine);
  void part();
  // On the device: nobody's buffer changes before all have read it.
  void part_after(const DeviceMemory::Moment& read);
  void all_gather_on_device(ConstBytes own, MutableBytes gathered);
  void wait_for_inputs();
  std::vector<int> absent() const;
  template <typename T>
  void reduce_block(std::span<const T> input, std::span<T> own, std::string_view op);
  template <typename Combine>
  void all_reduce(CollectiveKind kind, std::span<double> values, std::string_view op,
                  const Combine& combine);

  std::shared_ptr<ThreadWorld> world_;
  std::shared_ptr<ThreadSubgroup> group_;
  int rank_;
};

// Empty if all ranks called the same collective with the same sizes.
std::string find_disagreement(const ThreadSubgroup& group) {
  const Contribution& first = group.table[0];
  for (size_t position = 1; position < group.table.size(); ++position) {
    const Contribution& other = group.table[position];
    if (other.kind == first.kind && other.count == first.count && other.detail == first.detail &&
        other.op == first.op) {
      continue;
    }
    return text("collectives disagree: rank ", group.ranks[0], " is in '", first.op, "' with ",
                first.count, " elements, rank ", group.ranks[position], " in '", other.op,
                "' with ", other.count, "; kind or root may differ too");
  }
  return {};
}

std::vector<int> ThreadCommunicator::absent() const {
  std::vector<int> ranks;
  for (size_t position = 0; position < group_->ranks.size(); ++position) {
    if (!group_->present[position]) ranks.push_back(group_->ranks[position]);
  }
  return ranks;
}

// Returns when all members have brought their contribution. From then on nobody can be held up
// before part(), so part() needs no timeout, and no buffer is left while another rank reads it.
void ThreadCommunicator::meet(const Contribution& mine) {
  ThreadSubgroup& group = *group_;
  const int self = world_rank(rank_);
  const auto place = static_cast<size_t>(rank_);
  auto lock = world_->lock();
  world_->throw_if_failed(lock, self, mine.op);
  group.table[place] = mine;
  group.present[place] = true;
  if (++group.arrived == group.ranks.size()) {
    group.problem = find_disagreement(group);
    if (!group.problem.empty()) world_->fail(lock, group.problem);
    group.arrived = 0;
    group.present.assign(group.ranks.size(), false);
    ++group.meetings;
    for (const int rank : group.ranks) world_->wake(lock, rank);
  } else {
    const uint64_t meeting = group.meetings;
    try {
      world_->sleep_until(
          lock, self, mine.op, [this] { return absent(); },
          [&group, meeting] { return group.meetings != meeting; });
    } catch (...) {
      --group.arrived;
      group.present[place] = false;
      throw;
    }
  }
  if (!group.problem.empty()) throw InternalError(group.problem);
}

void ThreadCommunicator::part() {
  ThreadSubgroup& group = *group_;
  auto lock = world_->lock();
  if (++group.left == group.ranks.size()) {
    group.left = 0;
    ++group.partings;
    for (const int rank : group.ranks) world_->wake(lock, rank);
    return;
  }
  const uint64_t parting = group.partings;
  world_->sleep_until_certain(lock, world_rank(rank_),
                              [&group, parting] { return group.partings != parting; });
}

void ThreadCommunicator::part_after(const DeviceMemory::Moment& read) {
  {
    const auto lock = world_->lock();
    group_->reading[static_cast<size_t>(rank_)] = read;
    group_->noted += 1;
    if (group_->noted == group_->ranks.size()) {
      group_->noted = 0;
      group_->parted = std::make_shared<const Moments>(group_->reading);
    }
  }
  part();
  // The next parting needs this rank: until then the list stays.
  std::shared_ptr<const Moments> others;
  {
    const auto lock = world_->lock();
    others = group_->parted;
  }
  for (const DeviceMemory::Moment& moment : *others) world_->device_memory()->wait_for(moment);
}

void ThreadCommunicator::wait_for_inputs() {
  for (const Contribution& contribution : group_->table) {
    world_->device_memory()->wait_for(contribution.ready);
  }
}

Work ThreadCommunicator::exchange(std::span<const IncomingMessage> incoming,
                                  std::span<const OutgoingMessage> outgoing, std::string_view op) {
  const int64_t channel = user_channel(group_->number);
  const int self = world_rank(rank_);
  ThreadWorld::Transfers round;
  round.reserve(incoming.size() + outgoing.size());
  for (const IncomingMessage& message : incoming) {
    check_peer(message.source, op);
    const MessageKey key{channel, world_rank(message.source), message.tag};
    round.push_back(ThreadWorld::make_receive(self, key, op, message.data));
  }
  for (const OutgoingMessage& message : outgoing) {
    check_peer(message.destination, op);
    const MessageKey key{channel, self, message.tag};
    round.push_back(ThreadWorld::make_send(world_rank(message.destination), key, op, message.data));
  }
  if (round.empty()) return {};
  world_->post(self, round);
  return Work(std::make_unique<ThreadWork>(world_, std::move(round)));
}

void ThreadCommunicator::barrier(std::string_view op) {
  meet({.kind = CollectiveKind::kBarrier, .op = op});
}

void ThreadCommunicator::broadcast(int root, MutableBytes data, std::string_view op) {
  check_root(root, op);
  meet({.kind = CollectiveKind::kBroadcast,
        .op = op,
        .count = static_cast<int64_t>(data.size()),
        .detail = root,
        .input = data.data(),
        .ready = moment_of(data.data())});
  if (world_->on_device(data.data())) {
    DeviceMemory::Moment read;
    if (rank_ != root) {
      const Contribution& from = group_->table[static_cast<size_t>(root)];
      const Contribution& mine = group_->table[static_cast<size_t>(rank_)];
      const DeviceCopy copy{data.data(), from.input, data.size()};
      read = world_->device_memory()->copy({&copy, 1}, Moments{from.ready, mine.ready});
    }
    return part_after(read);
  }
  if (rank_ != root && !data.empty()) {
    std::memcpy(data.data(), group_->table[static_cast<size_t>(root)].input, data.size());
  }
  part();
}

void ThreadCommunicator::all_gather(ConstBytes own, MutableBytes gathered, std::string_view op) {
  const size_t block = own.size();
  const size_t ranks = group_->ranks.size();
  check_blocks(gathered.size(), block, op);
  meet({.kind = CollectiveKind::kAllGather,
        .op = op,
        .count = static_cast<int64_t>(block),
        .input = own.data(),
        .ready = moment_of(own.data())});
  if (block > 0 && world_->on_device(own.data())) return all_gather_on_device(own, gathered);
  for (size_t step = 0; step < ranks && block > 0; ++step) {
    const size_t position = (static_cast<size_t>(rank_) + step) % ranks;
    std::byte* target = gathered.data() + position * block;
    const void* source = group_->table[position].input;
    if (source != target) std::memcpy(target, source, block);
  }
  part();
}

void ThreadCommunicator::all_gather_on_device(ConstBytes own, MutableBytes gathered) {
  const size_t ranks = group_->ranks.size();
  std::vector<DeviceCopy> copies;
  Moments after{group_->table[static_cast<size_t>(rank_)].ready};
  for (size_t step = 0; step < ranks; ++step) {
    const size_t position = (static_cast<size_t>(rank_) + step) % ranks;
    std::byte* target = gathered.data() + position * own.size();
    const Contribution& from = group_->table[position];
    if (from.input == target) continue;
    copies.push_back({target, from.input, own.size()});
    after.push_back(from.ready);
  }
  part_after(copies.empty() ? nullptr : world_->device_memory()->copy(copies, after));
}

// Between meet() and part() on the host: no allocation, nothing that throws.
template <typename T>
void ThreadCommunicator::reduce_block(std::span<const T> input, std::span<T> own,
                                      std::string_view op) {
  const size_t count = own.size();
  check_blocks(input.size(), count, op);
  meet({.kind = CollectiveKind::kReduceScatter,
        .op = op,
        .count = static_cast<int64_t>(count),
        .detail = static_cast<int64_t>(sizeof(T)),
        .input = input.data(),
        .ready = moment_of(input.data())});
  if (count > 0 && world_->on_device(own.data())) {
    wait_for_inputs();
    std::vector<const T*> parts;
    for (const Contribution& contribution : group_->table) {
      parts.push_back(static_cast<const T*>(contribution.input) +
                      static_cast<size_t>(rank_) * count);
    }
    world_->device_memory()->sum(parts, static_cast<int64_t>(count), own.data());
    return part_after(world_->device_memory()->moment());
  }
  const size_t block_begin = static_cast<size_t>(rank_) * count;
  std::array<T, kSliceElements> sum;
  for (size_t begin = 0; begin < count; begin += kSliceElements) {
    const size_t slice = std::min(kSliceElements, count - begin);
    const auto of = [&](const Contribution& contribution) {
      return static_cast<const T*>(contribution.input) + block_begin + begin;
    };
    std::copy_n(of(group_->table[0]), slice, sum.begin());
    for (size_t position = 1; position < group_->table.size(); ++position) {
      const T* values = of(group_->table[position]);
      for (size_t i = 0; i < slice; ++i) sum[i] += values[i];
    }
    std::copy_n(sum.begin(), slice, own.begin() + static_cast<std::ptrdiff_t>(begin));
  }
  part();
}

// Each rank combines its own share of the elements, and writes it to all ranks: nobody else reads
// or writes those, so one meeting is enough and no rank needs room of its own.
template <typename Combine>
void ThreadCommunicator::all_reduce(CollectiveKind kind, std::span<double> values,
                                    std::string_view op, const Combine& combine) {
  LONGSPAN_CHECK(values.empty() || !world_->on_device(values.data()), op,
                 ": sums and maxima over ranks take host memory");
  meet({.kind = kind,
        .op = op,
        .count = static_cast<int64_t>(values.size()),
        .output = values.data()});
  const size_t ranks = group_->ranks.size();
  const auto place = static_cast<size_t>(rank_);
  const size_t share_begin = values.size() * place / ranks;
  const size_t share_end = values.size() * (place + 1) / ranks;
  std::array<double, kSliceElements> result;
  for (size_t begin = share_begin; begin < share_end; begin += kSliceElements) {
    const size_t slice = std::min(kSliceElements, share_end - begin);
    const auto of = [begin](const Contribution& contribution) {
      return static_cast<double*>(contribution.output) + begin;
    };
    std::copy_n(of(group_->table[0]), slice, result.begin());
    for (size_t position = 1; position < ranks; ++position) {
      const double* other = of(group_->table[position]);
      for (size_t i = 0; i < slice; ++i) result[i] = combine(result[i], other[i]);
    }
    for (const Contribution& contribution : group_->table) {
      std::copy_n(result.begin(), slice, of(contribution));
    }
  }
  part();
}

std::unique_ptr<Communicator> ThreadCommunicator::subgroup(const std::vector<int>& ranks,
                                                           std::string_view name) {
  const int position = place_in_subgroup(ranks, name);
  std::shared_ptr<ThreadSubgroup> child;
  if (rank_ == 0) {
    std::vector<int> world_ranks;
    for (const int rank : ranks) world_ranks.push_back(world_rank(rank));
    const auto lock = world_->lock();
    child = std::make_shared<ThreadSubgroup>(world_->new_group(lock), std::move(world_ranks));
  }
  meet({.kind = CollectiveKind::kSubgroup,
        .op = name,
        .count = static_cast<int64_t>(ranks.size()),
        .input = &ranks,
        .output = &child});
  const Contribution& leader = group_->table[0];
  const bool agreed = *static_cast<const std::vector<int>*>(leader.input) == ranks;
  auto made = *static_cast<const std::shared_ptr<ThreadSubgroup>*>(leader.output);
  part();
  LONGSPAN_CHECK(agreed, "subgroup '", name, "': rank ", rank_, " lists other ranks than rank 0");
  if (position < 0) return nullptr;
  return std::make_unique<ThreadCommunicator>(world_, std::move(made), position);
}

}  // namespace

ThreadGroup::ThreadGroup(int size, const ThreadGroupOptions& options) {
  LONGSPAN_CHECK(size >= 1, "a group of ", size, " ranks");
  LONGSPAN_CHECK(options.stall_timeout_s > 0, "stall timeout ", options.stall_timeout_s, " s");
  world_ = std::make_shared<ThreadWorld>(size, options.stall_timeout_s, options.device_memory);
  std::vector<int> ranks;
  for (int rank = 0; rank < size; ++rank) ranks.push_back(rank);
  const auto lock = world_->lock();
  everyone_ = std::make_shared<ThreadSubgroup>(world_->new_group(lock), std::move(ranks));
}

int ThreadGroup::size() const {
  return world_->size();
}

std::unique_ptr<Communicator> ThreadGroup::communicator(int rank) {
  LONGSPAN_CHECK(rank >= 0 && rank < size(), "rank ", rank, " of ", size());
  return std::make_unique<ThreadCommunicator>(world_, everyone_, rank);
}

void ThreadGroup::abort(std::string_view reason) {
  world_->fail(reason);
}

std::vector<RankStatus> ThreadGroup::statuses() const {
  return world_->statuses();
}

void ThreadGroup::set_finished(int rank) {
  world_->set_finished(rank);
}

}  // namespace longspan
