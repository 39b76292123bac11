// How parts of a plan print: in error messages, explanations and failed tests.
//
//   text(task)      "document 3, queries [0, 128) x keys [0, 128)"
//   text(transfer)  "key rows [128, 256) from rank 0 to rank 2"
//
// Pure; any thread.
#pragma once

#include <ostream>

#include "planner/attention_plan.h"

namespace longspan {

inline std::ostream& operator<<(std::ostream& out, Direction direction) {
  return out << (direction == Direction::kForward ? "forward" : "backward");
}

inline std::ostream& operator<<(std::ostream& out, RowKind kind) {
  return out << (kind == RowKind::kQuery ? "query" : "key");
}

inline std::ostream& operator<<(std::ostream& out, const AttentionTask& task) {
  return out << "document " << task.document << ", queries " << task.queries << " x keys "
             << task.keys;
}

inline std::ostream& operator<<(std::ostream& out, const Transfer& transfer) {
  return out << transfer.kind << " rows " << transfer.line << " from rank " << transfer.source
             << " to rank " << transfer.destination << (transfer.partial ? " (partial)" : "");
}

}  // namespace longspan
