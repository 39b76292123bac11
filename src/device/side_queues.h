// Queues beside the calling thread's own, for work that has no order among itself.
//
//   SideQueues queues(device);
//   for (const Call& call : calls) queues.run([&] { parts.push_back(start(call)); });
//   queues.join();
//   for (const Part& part : parts) add(part);     // on the thread's own queue again
//
// Why: a small launch leaves most of a GPU idle; a few of them side by side fill it. Work given to
// run() goes to the queues in turn. It sees all that the thread's own queue was given before the
// construction; the own queue waits for it at join().
// Memory: a tensor made inside run() must be kept until join(). After that it may be used and
// dropped: its memory is used again only by a later SideQueues of the thread, which first waits for
// the own queue. One thread, one SideQueues at a time; builds with CUDA only.
#pragma once

#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>

#include <vector>

namespace longspan {

class SideQueues {
 public:
  explicit SideQueues(at::Device device);
  SideQueues(const SideQueues&) = delete;
  SideQueues& operator=(const SideQueues&) = delete;

  template <typename Work>
  void run(const Work& work) {
    const c10::cuda::CUDAStreamGuard guard(queues_[next_]);
    next_ = (next_ + 1) % queues_.size();
    work();
  }

  void join();

 private:
  c10::cuda::CUDAStream own_;
  const std::vector<c10::cuda::CUDAStream>& queues_;
  size_t next_ = 0;
};

}  // namespace longspan
