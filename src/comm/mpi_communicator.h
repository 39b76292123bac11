// Ranks as processes of an MPI job: CPU ranks on one or many hosts.
//
//   int main() {
//     MpiSession session;                                   // MPI_Init ... MPI_Finalize
//     try {
//       MpiWorld world(session, {.stall_timeout_s = 300});
//       run_rank(*world.communicator(), body);              // run_ranks.h: a failure ends all
//       ranks
//     } catch (const std::exception& error) {
//       print(error.what());
//       session.end_job(exit_code);                         // does not return
//     }
//   }
//
// Messages go as communicator.h promises, with progress also while a rank computes; more than 2 GiB
// at a time are cut. When ranks stall, the one that notices asks all others what they are doing. A
// failure on one rank ends waiting on all, so each can report; then every process must leave
// through end_job(): MPI_Finalize would wait for those that cannot come. A killed process ends the
// job by mpirun's own doing, with a code that is not zero.
//
// Threads: session, world and communicators belong to one thread (abort() excepted). One world at a
// time, made and destroyed by all processes together.
#pragma once

#include <cstdint>
#include <memory>

#include "comm/communicator.h"

namespace longspan {

class MessageEngine;

class MpiSession {
 public:
  MpiSession();
  // Finalizes MPI; while an exception unwinds the stack it ends the whole job with code 3 instead.
  ~MpiSession();
  MpiSession(const MpiSession&) = delete;
  MpiSession& operator=(const MpiSession&) = delete;

  int rank() const;
  int size() const;
  // Ends all processes of the job; mpirun reports the code.
  [[noreturn]] void end_job(int exit_code) const;
};

struct MpiWorldOptions {
  double stall_timeout_s = 300;
  int64_t part_bytes = int64_t{1} << 30;  // the most that one MPI call carries
};

class MpiWorld {
 public:
  explicit MpiWorld(const MpiSession& session, const MpiWorldOptions& options = {});
  // Waits until all messages are delivered and all ranks are here, unless the job has failed.
  ~MpiWorld();

  // The communicator of all ranks; it and its subgroups must not outlive the world.
  std::unique_ptr<Communicator> communicator();

 private:
  std::unique_ptr<MessageEngine> engine_;
};

}  // namespace longspan
