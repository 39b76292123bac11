// One rank of a job that goes wrong, for mpi_job_test.cpp: the last rank fails as its argument
// says.

#include <chrono>
#include <csignal>
#include <cstdio>
#include <string>
#include <thread>

#include "base/error.h"
#include "comm/mpi_communicator.h"
#include "comm/run_ranks.h"

namespace {

void misbehave(const std::string& how, longspan::Communicator& comm) {
  using namespace std::chrono_literals;
  comm.activity("computing attention");
  if (how == "die") std::raise(SIGKILL);
  if (how == "stop") std::raise(SIGSTOP);
  if (how == "stall") std::this_thread::sleep_for(60s);
  if (how == "leave") std::_Exit(0);
  if (how == "throw") throw longspan::UserError("the shard is damaged");
}

}  // namespace

int main(int argc, char** argv) {
  const longspan::MpiSession session;
  try {
    longspan::MpiWorld world(session, {.stall_timeout_s = 1});
    longspan::run_rank(*world.communicator(), [&](longspan::Communicator& comm) {
      for (int step = 0; step < 3; ++step) {
        if (argc > 1 && step == 1 && comm.rank() == comm.size() - 1) misbehave(argv[1], comm);
        comm.barrier("end of the step");
      }
    });
    return 0;
  } catch (const std::exception& error) {
    std::fprintf(stderr, "failed: %s\n", error.what());
    session.end_job(3);
  }
}
