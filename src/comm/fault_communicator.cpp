#include "comm/fault_communicator.h"

#include <chrono>
#include <exception>
#include <thread>
#include <utility>

#include "base/error.h"
#include "base/random.h"

namespace longspan {
namespace {

// A send or receive that may not have been handed on yet.
struct HeldOperation {
  Communicator* carrier = nullptr;
  bool is_send = false;
  int peer = 0;
  int64_t tag = 0;
  std::string op;
  ConstBytes source;
  MutableBytes target;
  bool handed_on = false;
  Work work;

  bool same_order(const HeldOperation& other) const {
    return carrier == other.carrier && is_send == other.is_send && peer == other.peer &&
           tag == other.tag;
  }
};

// Shared by a rank's communicator and its subgroups; used by that rank's thread alone.
class FaultState {
 public:
  FaultState(const FaultPlan& plan, int rank)
      : plan_(plan),
        counts_(plan.faults.size(), 0),
        random_(plan.seed, "injected faults", static_cast<uint64_t>(rank)) {}

  // True if a send is to be dropped.
  bool apply(Communicator& carrier, std::string_view op, bool is_send) {
    if (random_.uniform() < plan_.delay_probability) {
      std::this_thread::sleep_for(
          std::chrono::microseconds(random_.between(0, plan_.delay_us_max)));
    }
    bool drop = false;
    for (size_t i = 0; i < plan_.faults.size(); ++i) {
      const Fault& fault = plan_.faults[i];
      if (op.find(fault.op) == std::string_view::npos) continue;
      if (fault.kind == Fault::Kind::kDrop && !is_send) continue;
      if (counts_[i]++ != fault.occurrence) continue;
      if (fault.kind == Fault::Kind::kDrop) drop = true;
      if (fault.kind == Fault::Kind::kStall) stall(carrier, op, fault.stall_s);
      if (fault.kind == Fault::Kind::kCrash) {
        throw InjectedCrash(text("injected crash of rank ", carrier.rank(), " in '", op, "'"));
      }
    }
    return drop;
  }

  void hold(const std::shared_ptr<HeldOperation>& operation) {
    held_.push_back(operation);
    while (!held_.empty() && (!plan_.reorder || random_.uniform() < 0.5)) hand_on_one();
  }
  void hand_on_all() {
    while (!held_.empty()) hand_on_one();
  }
  void forget(const HeldOperation* operation) {
    std::erase_if(held_, [operation](const auto& held) { return held.get() == operation; });
  }
  void forget_carrier(const Communicator* carrier) {
    std::erase_if(held_, [carrier](const auto& held) { return held->carrier == carrier; });
  }

 private:
  void stall(Communicator& carrier, std::string_view op, double seconds) {
    carrier.activity(text("injected stall before '", op, "'"));
    std::this_thread::sleep_for(std::chrono::duration<double>(seconds));
  }

  // Draws one held operation and hands on the oldest of those that must stay in order with it.
  void hand_on_one() {
    const size_t drawn = random_.below(held_.size());
    size_t first = 0;
    while (!held_[first]->same_order(*held_[drawn])) ++first;
    const std::shared_ptr<HeldOperation> next = held_[first];
    held_.erase(held_.begin() + static_cast<std::ptrdiff_t>(first));
    next->work = next->is_send
                     ? next->carrier->send(next->peer, next->tag, next->op, next->source)
                     : next->carrier->receive(next->peer, next->tag, next->op, next->target);
    next->handed_on = true;
  }

  const FaultPlan plan_;
  std::vector<int64_t> counts_;
  RandomStream random_;
  std::vector<std::shared_ptr<HeldOperation>> held_;
};

class FaultWork : public Work::State {
 public:
  FaultWork(std::shared_ptr<FaultState> state, std::shared_ptr<HeldOperation> operation)
      : state_(std::move(state)), operation_(std::move(operation)) {}

  bool done() override {
    state_->hand_on_all();
    return operation_->work.done();
  }
  void wait() override {
    try {
      state_->hand_on_all();
    } catch (...) {
      state_->forget(operation_.get());
      throw;
    }
    if (!operation_->handed_on) {
      throw DistributedError(text("'", operation_->op, "' with rank ", operation_->peer,
                                  ": the communicator failed before it was handed on"));
    }
    operation_->work.wait();
  }
  void abandon() override {
    state_->forget(operation_.get());
    operation_.reset();
  }

 private:
  std::shared_ptr<FaultState> state_;
  std::shared_ptr<HeldOperation> operation_;
};

class FaultCommunicator : public Communicator {
 public:
  FaultCommunicator(Communicator& inner, std::shared_ptr<FaultState> state)
      : inner_(&inner), state_(std::move(state)) {}
  FaultCommunicator(std::unique_ptr<Communicator> inner, std::shared_ptr<FaultState> state)
      : owned_(std::move(inner)), inner_(owned_.get()), state_(std::move(state)) {}

  ~FaultCommunicator() override {
    try {
      if (std::uncaught_exceptions() == 0) state_->hand_on_all();
    } catch (...) {
      // The job has failed; what is still held is void.
    }
    state_->forget_carrier(inner_);
  }

  int rank() const override { return inner_->rank(); }
  int size() const override { return inner_->size(); }
  std::string transport() const override { return inner_->transport() + " with injected faults"; }

  Work send(int destination, int64_t tag, std::string_view op, ConstBytes data) override {
    const bool drop = state_->apply(*inner_, op, true);
    check_peer(destination, op);
    if (drop) return {};
    return hold(HeldOperation{.carrier = inner_,
                              .is_send = true,
                              .peer = destination,
                              .tag = tag,
                              .op = std::string(op),
                              .source = data});
  }
  Work receive(int source, int64_t tag, std::string_view op, MutableBytes data) override {
    state_->apply(*inner_, op, false);
    check_peer(source, op);
    return hold(HeldOperation{.carrier = inner_,
                              .is_send = false,
                              .peer = source,
                              .tag = tag,
                              .op = std::string(op),
                              .target = data});
  }

  std::unique_ptr<Communicator> subgroup(const std::vector<int>& ranks,
                                         std::string_view name) override {
    enter_collective(name);
    auto group = inner_->subgroup(ranks, name);
    if (!group) return nullptr;
    return std::make_unique<FaultCommunicator>(std::move(group), state_);
  }
  void barrier(std::string_view op) override {
    enter_collective(op);
    inner_->barrier(op);
  }
  void broadcast(int root, MutableBytes data, std::string_view op) override {
    enter_collective(op);
    inner_->broadcast(root, data, op);
  }
  void all_gather(ConstBytes own, MutableBytes gathered, std::string_view op) override {
    enter_collective(op);
    inner_->all_gather(own, gathered, op);
  }
  void reduce_scatter(std::span<const float> input, std::span<float> own,
                      std::string_view op) override {
    enter_collective(op);
    inner_->reduce_scatter(input, own, op);
  }
  void reduce_scatter(std::span<const double> input, std::span<double> own,
                      std::string_view op) override {
    enter_collective(op);
    inner_->reduce_scatter(input, own, op);
  }
  void all_reduce_sum(std::span<double> values, std::string_view op) override {
    enter_collective(op);
    inner_->all_reduce_sum(values, op);
  }
  void all_reduce_max(std::span<double> values, std::string_view op) override {
    enter_collective(op);
    inner_->all_reduce_max(values, op);
  }

  void activity(std::string_view op) override { inner_->activity(op); }
  void abort(std::string_view reason) override { inner_->abort(reason); }

 private:
  Work hold(HeldOperation operation) {
    auto held = std::make_shared<HeldOperation>(std::move(operation));
    try {
      state_->hold(held);
    } catch (...) {
      state_->forget(held.get());
      throw;
    }
    return Work(std::make_unique<FaultWork>(state_, std::move(held)));
  }
  // Others may need this rank's messages before they reach the collective.
  void enter_collective(std::string_view op) {
    state_->apply(*inner_, op, false);
    state_->hand_on_all();
  }

  std::unique_ptr<Communicator> owned_;  // of a subgroup
  Communicator* inner_;
  std::shared_ptr<FaultState> state_;
};

}  // namespace

std::unique_ptr<Communicator> with_faults(Communicator& inner, const FaultPlan& plan) {
  return std::make_unique<FaultCommunicator>(inner,
                                             std::make_shared<FaultState>(plan, inner.rank()));
}

}  // namespace longspan
