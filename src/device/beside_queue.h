// A queue beside a thread's own, for work that others need later: it keeps its order there, and
// both run at once.
//
//   BesideQueue queue(device);
//   const BesideQueue::Moment gathered = queue.run([&] { gather(next_layer); });
//   compute(this_layer);                // meanwhile
//   queue.wait(gathered);               // what is queued from here on may read the next layer
//
// Work given to run() starts after all that the thread's own queue was given before, and after all
// earlier work of this queue. On CPU it runs at once. Memory that it reads or writes must live
// until the thread has waited for its moment; tensors made in it may be dropped after that. One
// thread, the one that made it.
#pragma once

#include <c10/core/Device.h>

#include <functional>
#include <memory>

namespace longspan {

class BesideQueue {
 public:
  using Moment = std::shared_ptr<const void>;  // null: it is over

  explicit BesideQueue(at::Device device);
  ~BesideQueue();

  Moment run(const std::function<void()>& work);
  void wait(const Moment& moment) const;

 private:
  struct Streams;
  std::unique_ptr<Streams> streams_;  // null on CPU
};

}  // namespace longspan
