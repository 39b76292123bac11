// Connections between all processes of a job, as they find each other in a rendezvous store.
//
//   std::vector<int> sockets = connect_all(store, "run", rank, size, 60);   // -1 at `rank`
//
// Each process listens on a free port and says where; then it calls all ranks below its own and
// answers all above. Sockets are non-blocking, without delays, and belong to the caller. UserError
// names who did not come and where. Any thread.
#pragma once

#include <string>
#include <vector>

#include "comm/rendezvous.h"

namespace longspan {

std::vector<int> connect_all(RendezvousStore& store, const std::string& name, int rank, int size,
                             double timeout_s);

}  // namespace longspan
