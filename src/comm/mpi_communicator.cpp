#include "comm/mpi_communicator.h"

#include <mpi.h>

#include <cstdlib>
#include <exception>
#include <utility>

#include "base/check.h"
#include "comm/engine_communicator.h"
#include "comm/mpi_wire.h"

namespace longspan {
namespace {

bool world_exists = false;

}  // namespace

MpiSession::MpiSession() {
  int given = 0;
  if (MPI_Init_thread(nullptr, nullptr, MPI_THREAD_SERIALIZED, &given) != MPI_SUCCESS) {
    throw UserError("MPI does not start; try 'mpirun -n 1 true' on this machine");
  }
  if (given < MPI_THREAD_SERIALIZED) {
    MPI_Finalize();
    throw UserError(text("this MPI library supports thread level ", given,
                         " only; longspan needs MPI_THREAD_SERIALIZED (", MPI_THREAD_SERIALIZED,
                         "): install Open MPI or MPICH built with threads"));
  }
}

MpiSession::~MpiSession() {
  if (std::uncaught_exceptions() > 0) end_job(3);
  MPI_Finalize();
}

int MpiSession::rank() const {
  int rank = 0;
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  return rank;
}

int MpiSession::size() const {
  int size = 0;
  MPI_Comm_size(MPI_COMM_WORLD, &size);
  return size;
}

void MpiSession::end_job(int exit_code) const {
  MPI_Abort(MPI_COMM_WORLD, exit_code);
  std::abort();  // MPI_Abort does not return
}

MpiWorld::MpiWorld(const MpiSession&, const MpiWorldOptions& options) {
  LONGSPAN_CHECK(!world_exists, "a process has one MPI world at a time");
  LONGSPAN_CHECK(options.stall_timeout_s > 0, "stall timeout ", options.stall_timeout_s, " s");
  engine_ = std::make_unique<MessageEngine>(std::make_unique<MpiWire>(options.part_bytes),
                                            options.stall_timeout_s);
  world_exists = true;
}

MpiWorld::~MpiWorld() {
  world_exists = false;
}

std::unique_ptr<Communicator> MpiWorld::communicator() {
  return world_communicator(*engine_, "mpi");
}

}  // namespace longspan
