// The attention plan: who computes which part of the core attention of one chunk, and which rows
// travel.
//
// Why: softmax(QK^T)V keeps no state, so it may be cut into tasks and computed on any rank. A plan
// is made once for each (micro-batch, chunk, direction), verified (plan_verifier.h), and then only
// read: by the runtime (attention/), by the schedule, and by whoever explains or simulates it.
// Nobody decides anew.
//
// A *task* = (document, query range, key range) in document positions; of its rectangle it computes
// the pairs with key <= query. A *server* is a rank in the role of running tasks; every rank has a
// ServerPlan, maybe empty.
//
// One pass over a plan:
//   out leg    rounds in order: rows go from ranks that hold them to ranks that need them.
//                kForward:  query rows carry Q, key rows carry K and V
//                kBackward: query rows carry Q, dO, LSE and delta = rowsum(dO * O); key rows K and
//                V
//   tasks      launch group by launch group, each as soon as its rounds have arrived (local tasks
//   first) back leg   rounds in order: partial results move towards their home and are merged where
//   they arrive.
//                kForward:  query rows carry O and LSE
//                kBackward: query rows carry dQ, key rows dK and dV
//
// Who holds what: at the start a rank holds the query rows of its own piece of this chunk and the
// key rows of its pieces of chunks 0 .. chunk (their homes), plus `resident_key_rows`. A transfer
// of the out leg copies rows that its source held before that round, so a relay is a transfer in a
// later round. A transfer of the back leg *moves* the source's partial result: the destination
// merges it with its own, so reductions may go through a relay as well. Merge order is fixed: own
// part, then by round, then by source rank.
//
// Line positions (layout/token_layout.h) name rows on the wire and in buffers; documents name
// tasks. Values; immutable once made; any thread may read them.
#pragma once

#include <cstdint>
#include <vector>

#include "base/range.h"
#include "cost/direction.h"
#include "layout/token_layout.h"

namespace longspan {

enum class RowKind { kQuery, kKeyValue };

struct AttentionTask {
  int32_t document = 0;
  Range queries;  // document positions
  Range keys;     // document positions
  bool operator==(const AttentionTask&) const = default;
};

// Pairs (query, key) with key <= query inside the task: the exact work.
int64_t visible_pairs(const Range& queries, const Range& keys);

// Tasks [task_begin, task_end) of a server, launched together once the out rounds [0, after_round)
// have arrived.
struct LaunchGroup {
  int after_round = 0;
  int64_t task_begin = 0;
  int64_t task_end = 0;
  bool operator==(const LaunchGroup&) const = default;
};

struct Transfer {
  int source = 0;
  int destination = 0;
  RowKind kind = RowKind::kQuery;
  Range line;
  // Back leg: other parts of these rows exist, so values travel in the accumulation type (fp32 or
  // wider).
  bool partial = false;
  bool operator==(const Transfer&) const = default;
};

// Transfers of one round, sorted by (source, destination, kind, line.begin). All rows from one rank
// to another travel as one message of exactly their size.
struct Round {
  std::vector<Transfer> transfers;
  bool operator==(const Round&) const = default;
};

struct ServerPlan {
  std::vector<AttentionTask> tasks;  // in launch order
  std::vector<LaunchGroup> groups;   // consecutive, covering all tasks
  // Line rows of this server's input buffers, normalized; each row once, however many tasks use it.
  // Tasks are slices: the key range of a task lies inside one of these ranges.
  std::vector<Range> query_rows;
  std::vector<Range> key_rows;
  // Key rows, homed elsewhere, that an earlier chunk of the same band, layer and pass left on this
  // server.
  std::vector<Range> resident_key_rows;
  bool operator==(const ServerPlan&) const = default;
};

struct AttentionPlan {
  Direction direction = Direction::kForward;
  int chunk = 0;
  std::vector<ServerPlan> servers;  // one for each rank
  std::vector<Round> out;
  std::vector<Round> back;
  bool operator==(const AttentionPlan&) const = default;
};

// The two plans of a chunk.
struct ChunkPlans {
  AttentionPlan forward;
  AttentionPlan backward;
};

// Derives query_rows and key_rows of every server from its tasks and sorts the transfers of each
// round.
void finish_plan(const TokenLayout& layout, AttentionPlan* plan);

// Rows of a buffer made of the normalized ranges: line position -> row.
class RowMap {
 public:
  RowMap() = default;
  explicit RowMap(std::vector<Range> ranges);
  int64_t num_rows() const { return num_rows_; }
  const std::vector<Range>& ranges() const { return ranges_; }
  // The buffer rows of a line range that lies inside one of the ranges; InternalError otherwise.
  Range rows(const Range& line) const;

 private:
  std::vector<Range> ranges_;
  std::vector<int64_t> first_row_;
  int64_t num_rows_ = 0;
};

// Transfers of a round between one pair of ranks, in wire order.
std::vector<Transfer> transfers_between(const Round& round, int source, int destination);

}  // namespace longspan
