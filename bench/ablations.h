// Switches that show what exchange costs, for benchmarks only.
//
//   SignalCommunicator signals(comm, device_memory(device));     // messages of one byte
//   const auto memory = std::make_shared<SingleStreamMemory>(device_memory(device));  // copies
//   wait for the rank's work
//
// A step with signals in place of messages has every launch, wait and meeting of a real one, and no
// bytes: what it is faster by is exposed communication. Where bytes would have arrived there are
// zeros, so results are finite and wrong. Collectives (weights, gradients, sums) stay as they are.
// Threads: as Communicator and DeviceMemory.
#pragma once

#include <c10/cuda/CUDAStream.h>
#include <cuda_runtime_api.h>

#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "base/check.h"
#include "comm/communicator.h"
#include "comm/device_memory.h"

namespace longspan {

class SignalCommunicator final : public Communicator {
 public:
  SignalCommunicator(Communicator& inner, std::shared_ptr<DeviceMemory> memory)
      : inner_(inner), memory_(std::move(memory)) {}
  SignalCommunicator(std::unique_ptr<Communicator> owned, std::shared_ptr<DeviceMemory> memory)
      : owned_(std::move(owned)), inner_(*owned_), memory_(std::move(memory)) {}

  int rank() const override { return inner_.rank(); }
  int size() const override { return inner_.size(); }
  std::string transport() const override { return inner_.transport() + ", signals only"; }

  Work send(int destination, int64_t tag, std::string_view op, ConstBytes data) override {
    return inner_.send(destination, tag, op, signal(data));
  }
  Work receive(int source, int64_t tag, std::string_view op, MutableBytes data) override {
    return inner_.receive(source, tag, op, cleared(data));
  }
  Work exchange(std::span<const IncomingMessage> incoming,
                std::span<const OutgoingMessage> outgoing, std::string_view op) override {
    std::vector<IncomingMessage> in(incoming.begin(), incoming.end());
    std::vector<OutgoingMessage> out(outgoing.begin(), outgoing.end());
    for (IncomingMessage& message : in) message.data = cleared(message.data);
    for (OutgoingMessage& message : out) message.data = signal(message.data);
    return inner_.exchange(in, out, op);
  }

  std::unique_ptr<Communicator> subgroup(const std::vector<int>& ranks,
                                         std::string_view name) override {
    auto group = inner_.subgroup(ranks, name);
    if (!group) return nullptr;
    return std::make_unique<SignalCommunicator>(std::move(group), memory_);
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
  ConstBytes signal(ConstBytes data) const {
    return data.size() > 1 && memory_->owns(data.data()) ? data.first(1) : data;
  }
  MutableBytes cleared(MutableBytes data) const {
    if (data.size() <= 1 || !memory_->owns(data.data())) return data;
    const c10::cuda::CUDAStream stream = c10::cuda::getCurrentCUDAStream();
    LONGSPAN_CHECK(cudaMemsetAsync(data.data(), 0, data.size(), stream.stream()) == cudaSuccess,
                   "memset");
    return data.first(1);
  }

  std::unique_ptr<Communicator> owned_;
  Communicator& inner_;
  const std::shared_ptr<DeviceMemory> memory_;
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
