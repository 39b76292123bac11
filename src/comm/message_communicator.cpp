#include "comm/message_communicator.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>

#include "base/check.h"

namespace longspan {

// After the round with distance d every rank has heard, directly or not, of the 2d - 1 ranks before
// it.
void MessageCommunicator::barrier(std::string_view op) {
  const int64_t sequence = sequence_++;
  for (int distance = 1; distance < size(); distance *= 2) {
    const int next = (rank() + distance) % size();
    const int previous = (rank() + size() - distance) % size();
    Work incoming = receive_collective(previous, sequence, op, {});
    Work outgoing = send_collective(next, sequence, op, {});
    incoming.wait();
    outgoing.wait();
  }
}

// A binomial tree over the ranks counted from the root.
void MessageCommunicator::broadcast(int root, MutableBytes data, std::string_view op) {
  check_root(root, op);
  const int64_t sequence = sequence_++;
  const int place = (rank() + size() - root) % size();
  int distance = 1;
  while (distance < size() && (place & distance) == 0) distance *= 2;
  if (place != 0) {
    const int parent = (place - distance + root) % size();
    receive_collective(parent, sequence, op, data).wait();
  }
  std::vector<Work> works;
  for (distance /= 2; distance >= 1; distance /= 2) {
    if (place + distance >= size()) continue;
    const int child = (place + distance + root) % size();
    works.push_back(send_collective(child, sequence, op, data));
  }
  for (Work& work : works) work.wait();
}

void MessageCommunicator::copy_own(MutableBytes target, ConstBytes own) {
  if (!on_device(own.data())) {
    std::memcpy(target.data(), own.data(), own.size());
    return;
  }
  DeviceMemory& memory = *device_memory();
  const DeviceCopy copy{target.data(), own.data(), own.size()};
  const DeviceMemory::Moment now = memory.moment();
  memory.wait_for(memory.copy({&copy, 1}, {&now, 1}));
}

void MessageCommunicator::all_gather(ConstBytes own, MutableBytes gathered, std::string_view op) {
  check_blocks(gathered.size(), own.size(), op);
  std::vector<MutableBytes> blocks;
  for (size_t place = 0; place < static_cast<size_t>(size()); ++place) {
    blocks.push_back(gathered.subspan(place * own.size(), own.size()));
  }
  const MutableBytes target = blocks[static_cast<size_t>(rank())];
  if (!own.empty() && own.data() != target.data()) copy_own(target, own);
  gather_blocks(blocks, op);
}

// Every rank holds its own block and receives the others.
void MessageCommunicator::gather_blocks(const std::vector<MutableBytes>& blocks,
                                        std::string_view op) {
  const int64_t sequence = sequence_++;
  const ConstBytes own = blocks[static_cast<size_t>(rank())];
  std::vector<Work> works;
  for (int step = 1; step < size(); ++step) {
    const int source = (rank() + size() - step) % size();
    works.push_back(receive_collective(source, sequence, op, blocks[static_cast<size_t>(source)]));
  }
  for (int step = 1; step < size(); ++step) {
    works.push_back(send_collective((rank() + step) % size(), sequence, op, own));
  }
  for (Work& work : works) work.wait();
}

// own = blocks[rank()] of all ranks, combined in rank order; blocks[r] goes to rank r. `own` may
// lie inside blocks[rank()].
template <typename T, typename Combine>
void MessageCommunicator::combine_blocks(const std::vector<std::span<const T>>& blocks,
                                         std::span<T> own, std::string_view op,
                                         const Combine& combine) {
  const int64_t sequence = sequence_++;
  std::vector<Work> sends;
  for (int step = 1; step < size(); ++step) {
    const int destination = (rank() + step) % size();
    sends.push_back(send_collective(destination, sequence, op,
                                    std::as_bytes(blocks[static_cast<size_t>(destination)])));
  }

  std::array<std::vector<T>, 2> rooms;
  std::array<Work, 2> receives;
  const auto post = [&](int source) {
    if (source >= size() || source == rank()) return;
    const auto side = static_cast<size_t>(source % 2);
    rooms[side].resize(own.size());
    receives[side] =
        receive_collective(source, sequence, op, std::as_writable_bytes(std::span<T>(rooms[side])));
  };
  std::vector<T> result(own.size());
  post(0);
  post(1);
  for (int source = 0; source < size(); ++source) {
    const auto side = static_cast<size_t>(source % 2);
    receives[side].wait();
    const std::span<const T> block =
        source == rank() ? blocks[static_cast<size_t>(source)] : std::span<const T>(rooms[side]);
    if (source == 0) {
      std::copy(block.begin(), block.end(), result.begin());
    } else {
      for (size_t i = 0; i < result.size(); ++i) result[i] = combine(result[i], block[i]);
    }
    post(source + 2);
  }
  for (Work& work : sends) work.wait();
  std::copy(result.begin(), result.end(), own.begin());
}

template <typename T>
void MessageCommunicator::reduce_block(std::span<const T> input, std::span<T> own,
                                       std::string_view op) {
  check_blocks(input.size(), own.size(), op);
  std::vector<std::span<const T>> blocks;
  for (size_t place = 0; place < static_cast<size_t>(size()); ++place) {
    blocks.push_back(input.subspan(place * own.size(), own.size()));
  }
  if (!own.empty() && on_device(own.data())) return sum_blocks_on_device(blocks, own, op);
  combine_blocks(blocks, own, op, [](T a, T b) { return a + b; });
}

// All blocks are here before the first is added: the device adds them in one pass.
template <typename T>
void MessageCommunicator::sum_blocks_on_device(const std::vector<std::span<const T>>& blocks,
                                               std::span<T> own, std::string_view op) {
  const int64_t sequence = sequence_++;
  DeviceMemory& memory = *device_memory();
  const size_t block_bytes = own.size_bytes();
  const std::shared_ptr<std::byte> room = memory.room(block_bytes * (blocks.size() - 1));
  std::vector<const T*> parts(blocks.size());
  std::vector<Work> works;
  for (int step = 1; step < size(); ++step) {
    const int source = (rank() + size() - step) % size();
    const MutableBytes block{room.get() + block_bytes * static_cast<size_t>(step - 1), block_bytes};
    parts[static_cast<size_t>(source)] = reinterpret_cast<const T*>(block.data());
    works.push_back(receive_collective(source, sequence, op, block));
  }
  for (int step = 1; step < size(); ++step) {
    const int destination = (rank() + step) % size();
    works.push_back(send_collective(destination, sequence, op,
                                    std::as_bytes(blocks[static_cast<size_t>(destination)])));
  }
  for (Work& work : works) work.wait();
  parts[static_cast<size_t>(rank())] = blocks[static_cast<size_t>(rank())].data();
  memory.sum(parts, static_cast<int64_t>(own.size()), own.data());
}

// Each rank combines its share of the elements, then all shares are gathered.
template <typename Combine>
void MessageCommunicator::all_reduce(std::span<double> values, std::string_view op,
                                     const Combine& combine) {
  LONGSPAN_CHECK(values.empty() || !on_device(values.data()), op,
                 ": sums and maxima over ranks take host memory");
  const auto ranks = static_cast<size_t>(size());
  std::vector<std::span<const double>> inputs;
  std::vector<MutableBytes> outputs;
  for (size_t place = 0; place < ranks; ++place) {
    const size_t begin = values.size() * place / ranks;
    const size_t end = values.size() * (place + 1) / ranks;
    const std::span<double> share = values.subspan(begin, end - begin);
    inputs.push_back(share);
    outputs.push_back(std::as_writable_bytes(share));
  }
  const size_t begin = values.size() * static_cast<size_t>(rank()) / ranks;
  const std::span<double> own = values.subspan(begin, inputs[static_cast<size_t>(rank())].size());
  combine_blocks(inputs, own, op, combine);
  gather_blocks(outputs, op);
}

void MessageCommunicator::reduce_scatter(std::span<const float> input, std::span<float> own,
                                         std::string_view op) {
  reduce_block(input, own, op);
}

void MessageCommunicator::reduce_scatter(std::span<const double> input, std::span<double> own,
                                         std::string_view op) {
  reduce_block(input, own, op);
}

void MessageCommunicator::all_reduce_sum(std::span<double> values, std::string_view op) {
  all_reduce(values, op, [](double a, double b) { return a + b; });
}

void MessageCommunicator::all_reduce_max(std::span<double> values, std::string_view op) {
  all_reduce(values, op, [](double a, double b) { return std::isnan(a) || a > b ? a : b; });
}

}  // namespace longspan
