// Which rows a rank holds before a plan runs, and which results have several parts.
//
// Both follow from the rules of planner/attention_plan.h; planner, verifier and tests ask here, so
// that the rules are written down once.
//
// Pure functions; any thread.
#pragma once

#include <vector>

#include "planner/attention_plan.h"

namespace longspan {

// Rows whose home is `rank`: query rows of this chunk, key rows of chunks 0 .. chunk. Normalized.
std::vector<Range> home_rows(const TokenLayout& layout, int chunk, int rank, RowKind kind);

// Rows that `rank` holds before the first out round: its home rows and, of keys, the resident ones.
std::vector<Range> rows_held_at_start(const TokenLayout& layout, const AttentionPlan& plan,
                                      int rank, RowKind kind);

// Key rows that `rank` holds after the last out round: those at the start and all that arrived.
std::vector<Range> key_rows_held_at_end(const TokenLayout& layout, const AttentionPlan& plan,
                                        int rank);

// The rows of this kind in the server's buffers.
inline const std::vector<Range>& buffer_rows(const ServerPlan& server, RowKind kind) {
  return kind == RowKind::kQuery ? server.query_rows : server.key_rows;
}

// The kinds of rows that come back: O or dQ; in backward dK and dV as well.
std::vector<RowKind> result_kinds(Direction direction);

// Rows whose result is a sum or merge of several parts: more than one server has them in its
// buffers, or (dK and dV) other chunks add to them too. Normalized. Needs the servers' buffer rows.
std::vector<Range> rows_with_other_parts(const TokenLayout& layout, const AttentionPlan& plan,
                                         RowKind kind);

// Of both kinds; without keys where the plan's direction brings no results for them.
struct RowsWithOtherParts {
  std::vector<Range> queries;
  std::vector<Range> keys;
};
RowsWithOtherParts rows_with_other_parts(const TokenLayout& layout, const AttentionPlan& plan);
// The same, quicker, of a plan whose out leg is one round straight from the homes, or none.
RowsWithOtherParts rows_with_other_parts_if_direct(const TokenLayout& layout,
                                                   const AttentionPlan& plan);

// Sets Transfer::partial on the back leg: true where a row of the transfer has other parts.
void mark_partial_transfers(const RowsWithOtherParts& rows, AttentionPlan* plan);
void mark_partial_transfers(const TokenLayout& layout, AttentionPlan* plan);
// Of a back leg on which some transfers are known to be partial.
void mark_more_partial_transfers(const RowsWithOtherParts& rows, std::vector<Round>* back);

}  // namespace longspan
