#include "checkpoint/agreement.h"

#include <array>
#include <optional>
#include <string>

#include "base/error.h"

namespace longspan {
namespace {

// The message of the lowest rank, which alone has one to give.
std::string broadcast_text(Communicator& comm, int root, const std::string& own,
                           std::string_view op) {
  std::array<int64_t, 1> size = {static_cast<int64_t>(own.size())};
  comm.broadcast(root, std::as_writable_bytes(std::span(size)), op);
  std::string message = own;
  message.resize(static_cast<size_t>(size[0]));
  comm.broadcast(root, std::as_writable_bytes(std::span(message)), op);
  return message;
}

}  // namespace

void agree(Communicator& comm, std::string_view op, const std::function<void()>& body) {
  std::optional<std::string> failure;
  try {
    body();
  } catch (const UserError& error) {
    failure = error.what();
  }
  // Negated, so that the maximum is the lowest rank that failed; -size means none did.
  const double none = -static_cast<double>(comm.size());
  double worst = failure ? -static_cast<double>(comm.rank()) : none;
  comm.all_reduce_max(std::span(&worst, 1), op);
  if (worst == none) return;
  const int root = static_cast<int>(-worst);
  const std::string message =
      broadcast_text(comm, root, comm.rank() == root ? *failure : std::string(), op);
  throw UserError(comm.size() == 1 ? message : text("rank ", root, ": ", message));
}

}  // namespace longspan
