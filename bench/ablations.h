// Switches that show what exchange costs, for benchmarks only.
//
//   MessageTape tape;                                               // of a rank
//   TapedCommunicator recorder(comm, memory, tape, /*replay=*/false);   // one step as it is
//   TapedCommunicator signals(comm, memory, tape, /*replay=*/true);     // the same step again
//   const auto memory = std::make_shared<SingleStreamMemory>(device_memory(device));
//
// Replayed, a message is one byte, and what it brought in the recorded step is copied from the
// tape, within the GPU: a step has every launch, wait and meeting of a real one and the same
// values, but nothing travels. What it is faster by is exposed communication. The recorded step
// must have the same plans and, as its values are used again, the same weights. Collectives
// (weights, gradients, sums) stay as they are. With SingleStreamMemory messages are copied within
// the rank's own work, which waits for them.
// Threads: as Communicator and DeviceMemory; a tape belongs to a rank.
#pragma once

#include <c10/cuda/CUDAStream.h>
#include <cuda_runtime_api.h>

#include <functional>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "base/check.h"
#include "comm/communicator.h"
#include "comm/device_memory.h"

namespace longspan {

class MessageTape {
 public:
  void record(int source, int64_t tag, MutableBytes data) {
    auto& kept = messages_[{source, tag, data.size()}];
    if (!kept) {
      void* block = nullptr;
      check(cudaMalloc(&block, data.size()), "memory for the tape");
      kept = {block, [](void* address) { cudaFree(address); }};
    }
    copy(kept.get(), data.data(), data.size());
  }
  void replay(int source, int64_t tag, MutableBytes data) const {
    const auto kept = messages_.find({source, tag, data.size()});
    LONGSPAN_CHECK(kept != messages_.end(), "rank ", source, " sends ", data.size(),
                   " bytes with tag ", tag, ", which were not recorded: was it another step?");
    copy(data.data(), kept->second.get(), data.size());
  }

 private:
  static void check(cudaError_t error, const char* what) {
    LONGSPAN_CHECK(error == cudaSuccess, what, ": ", cudaGetErrorString(error));
  }
  static void copy(void* target, const void* source, size_t bytes) {
    const c10::cuda::CUDAStream stream = c10::cuda::getCurrentCUDAStream();
    check(cudaMemcpyAsync(target, source, bytes, cudaMemcpyDeviceToDevice, stream.stream()),
          "copy to or from the tape");
  }

  std::map<std::tuple<int, int64_t, size_t>, std::shared_ptr<void>> messages_;
};

class TapedCommunicator final : public Communicator {
 public:
  TapedCommunicator(Communicator& inner, std::shared_ptr<DeviceMemory> memory, MessageTape& tape,
                    bool replay)
      : inner_(inner), memory_(std::move(memory)), tape_(tape), replay_(replay) {}
  TapedCommunicator(std::unique_ptr<Communicator> owned, const TapedCommunicator& parent)
      : owned_(std::move(owned)),
        inner_(*owned_),
        memory_(parent.memory_),
        tape_(parent.tape_),
        replay_(parent.replay_) {}

  int rank() const override { return inner_.rank(); }
  int size() const override { return inner_.size(); }
  std::string transport() const override { return inner_.transport() + ", taped"; }

  Work send(int destination, int64_t tag, std::string_view op, ConstBytes data) override {
    const bool signal = replay_ && on_device(data);
    return inner_.send(destination, tag, op, signal ? data.first(1) : data);
  }
  Work receive(int source, int64_t tag, std::string_view op, MutableBytes data) override {
    if (!on_device(data)) return inner_.receive(source, tag, op, data);
    if (replay_) {
      tape_.replay(source, tag, data);
      return inner_.receive(source, tag, op, data.first(1));
    }
    return Work(
        std::make_unique<Recorded>(inner_.receive(source, tag, op, data),
                                   [this, source, tag, data] { tape_.record(source, tag, data); }));
  }

  std::unique_ptr<Communicator> subgroup(const std::vector<int>& ranks,
                                         std::string_view name) override {
    auto group = inner_.subgroup(ranks, name);
    if (!group) return nullptr;
    return std::make_unique<TapedCommunicator>(std::move(group), *this);
  }
  void barrier(std::string_view op) override { inner_.barrier(op); }
  void broadcast(int root, MutableBytes data, std::string_view op) override {
    inner_.broadcast(root, data, op);
  }
  void all_gather(ConstBytes own, MutableBytes gathered, std::string_view op) override {
    inner_.all_gather(own, gathered, op);
  }
  void reduce_scatter(std::span<const float> input, std::span<float> own,
                      std::string_view op) override {
    inner_.reduce_scatter(input, own, op);
  }
  void reduce_scatter(std::span<const double> input, std::span<double> own,
                      std::string_view op) override {
    inner_.reduce_scatter(input, own, op);
  }
  void all_reduce_sum(std::span<double> values, std::string_view op) override {
    inner_.all_reduce_sum(values, op);
  }
  void all_reduce_max(std::span<double> values, std::string_view op) override {
    inner_.all_reduce_max(values, op);
  }
  void activity(std::string_view op) override { inner_.activity(op); }
  void abort(std::string_view reason) override { inner_.abort(reason); }

 private:
  // A receive that is written down when it has been waited for.
  class Recorded final : public Work::State {
   public:
    Recorded(Work work, std::function<void()> record)
        : work_(std::move(work)), record_(std::move(record)) {}
    bool done() override { return work_.done(); }
    void wait() override {
      work_.wait();
      record_();
    }
    void abandon() override { work_ = {}; }

   private:
    Work work_;
    const std::function<void()> record_;
  };

  bool on_device(ConstBytes data) const { return data.size() > 1 && memory_->owns(data.data()); }

  std::unique_ptr<Communicator> owned_;
  Communicator& inner_;
  const std::shared_ptr<DeviceMemory> memory_;
  MessageTape& tape_;
  const bool replay_;
};

class SingleStreamMemory final : public DeviceMemory {
 public:
  explicit SingleStreamMemory(std::shared_ptr<DeviceMemory> inner) : inner_(std::move(inner)) {}

  bool owns(const void* address) const override { return inner_->owns(address); }
  Moment moment() override { return inner_->moment(); }
  void wait_for(const Moment& moment) override { inner_->wait_for(moment); }
  // Within the work of the thread that copies.
  Moment copy(std::span<const DeviceCopy> copies, std::span<const Moment> after) override {
    for (const Moment& moment : after) inner_->wait_for(moment);
    const c10::cuda::CUDAStream stream = c10::cuda::getCurrentCUDAStream();
    for (const DeviceCopy& copy : copies) {
      LONGSPAN_CHECK(cudaMemcpyAsync(copy.target, copy.source, copy.bytes, cudaMemcpyDefault,
                                     stream.stream()) == cudaSuccess,
                     "copy between ranks");
    }
    return inner_->moment();
  }
  std::shared_ptr<const std::byte> duplicate(const std::byte* source, size_t bytes,
                                             const Moment& after, Moment* done) override {
    return inner_->duplicate(source, bytes, after, done);
  }
  std::shared_ptr<std::byte> room(size_t bytes) override { return inner_->room(bytes); }
  void sum(std::span<const float* const> parts, int64_t elements, float* sum) override {
    inner_->sum(parts, elements, sum);
  }
  void sum(std::span<const double* const> parts, int64_t elements, double* sum) override {
    inner_->sum(parts, elements, sum);
  }
  void finish() override { inner_->finish(); }

 private:
  const std::shared_ptr<DeviceMemory> inner_;
};

}  // namespace longspan
