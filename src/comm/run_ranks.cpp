#include "comm/run_ranks.h"

#include <chrono>
#include <condition_variable>
#include <exception>
#include <mutex>
#include <system_error>
#include <thread>
#include <utility>
#include <vector>

#include "base/check.h"
#include "comm/stall_report.h"
#include "comm/thread_communicator.h"

namespace longspan {
namespace {

std::string message_of(const std::exception_ptr& failure) {
  try {
    std::rethrow_exception(failure);
  } catch (const std::exception& error) {
    return error.what();
  } catch (...) {
    return "an exception without a message";
  }
}

bool is_distributed(const std::exception_ptr& failure) {
  try {
    std::rethrow_exception(failure);
  } catch (const DistributedError&) {
    return true;
  } catch (...) {
    return false;
  }
}

// Which ranks have ended, and the failure to report: the first, but a rank's own error goes before
// the DistributedError of a rank that noticed it from outside.
class Roll {
 public:
  explicit Roll(int size) : ended_(static_cast<size_t>(size), false) {}

  void end(int rank, std::exception_ptr failure) {
    const std::lock_guard guard(mutex_);
    ended_[static_cast<size_t>(rank)] = true;
    ++ended_count_;
    if (failure && (!failure_ || (is_distributed(failure_) && !is_distributed(failure)))) {
      failure_ = std::move(failure);
    }
    changed_.notify_all();
  }

  // Waits for all ranks, after a failure no longer than grace_s. Returns those still running.
  std::vector<int> wait(double grace_s) {
    std::unique_lock guard(mutex_);
    const auto all_ended = [this] { return ended_count_ == ended_.size(); };
    changed_.wait(guard, [&] { return all_ended() || failure_; });
    changed_.wait_for(guard, std::chrono::duration<double>(grace_s), all_ended);
    std::vector<int> running;
    for (size_t rank = 0; rank < ended_.size(); ++rank) {
      if (!ended_[rank]) running.push_back(static_cast<int>(rank));
    }
    return running;
  }

  std::exception_ptr failure() {
    const std::lock_guard guard(mutex_);
    return failure_;
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<bool> ended_;
  size_t ended_count_ = 0;
  std::exception_ptr failure_;
};

// The calling frame owns what the stuck threads use, so nothing may leave it.
[[noreturn]] void end_process(const std::string& message) noexcept {
  std::rethrow_exception(std::make_exception_ptr(DistributedError(message)));
}

void run_member(ThreadGroup& group, Roll& roll, int rank, const RankBody& body) {
  std::exception_ptr failure;
  try {
    const auto communicator = group.communicator(rank);
    run_rank(*communicator, body);
  } catch (...) {
    failure = std::current_exception();
  }
  group.set_finished(rank);
  roll.end(rank, std::move(failure));
}

}  // namespace

void run_rank(Communicator& communicator, const RankBody& body) {
  try {
    body(communicator);
  } catch (...) {
    const std::string what = message_of(std::current_exception());
    communicator.abort(text("rank ", communicator.rank(), " failed: ", what));
    throw;
  }
}

void run_ranks(int size, const RunRanksOptions& options, const RankBody& body) {
  LONGSPAN_CHECK(size >= 1, "asked for ", size, " ranks");
  ThreadGroup group(
      size, {.stall_timeout_s = options.stall_timeout_s, .device_memory = options.device_memory});
  Roll roll(size);
  std::vector<std::thread> threads;
  try {
    for (int rank = 0; rank < size; ++rank) {
      threads.emplace_back([&, rank] { run_member(group, roll, rank, body); });
    }
  } catch (const std::system_error& error) {
    const auto failure = std::make_exception_ptr(
        UserError(text("cannot start a thread for rank ", threads.size(), " of ", size, ": ",
                       error.what(), "; use fewer ranks or raise the limit on processes")));
    group.abort(message_of(failure));
    for (int rank = static_cast<int>(threads.size()); rank < size; ++rank) roll.end(rank, failure);
  }
  const std::vector<int> running = roll.wait(options.grace_s);
  if (!running.empty()) {
    const std::vector<RankStatus> statuses = group.statuses();
    std::string message = message_of(roll.failure());
    for (const int rank : running) {
      message += text("; rank ", rank, " cannot be ended: it ",
                      describe(statuses[static_cast<size_t>(rank)]));
    }
    if (options.on_stuck) options.on_stuck(message);
    end_process(message);
  }
  for (std::thread& thread : threads) thread.join();
  if (const auto failure = roll.failure()) std::rethrow_exception(failure);
}

}  // namespace longspan
