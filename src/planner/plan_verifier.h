// Proves that an attention plan computes exactly the attention of its chunk.
//
//   verify_plan(layout, plan, {.require_block_alignment = true});
//
// throws InternalError naming the first violation with its values (server, document, ranges,
// round). It checks that
//   - every (query, visible key) pair of the chunk's queries is covered once (coverage.h); no task
//     is without a visible pair; buffer rows are those of the tasks, groups tile the task list;
//   - playing the out leg round by round, a source holds what it sends before the round, nobody
//     gets rows that it holds, and each launch group finds its inputs;
//   - playing the back leg, a source holds the partial results that it moves, and at the end each
//     row's home, and nobody else, holds its result; rows with several parts travel as `partial`.
// Two rules beyond attention_plan.h keep runtimes simple, and cost a plan nothing: a transfer stays
// inside one home piece, and in one back round a rank does not both send and receive a row.
//
// Pure; any thread. O(n log n) in tasks and transfers.
#pragma once

#include <vector>

#include "planner/attention_plan.h"

namespace longspan {

struct VerifyOptions {
  // Whether each cut of a task must be a multiple of kBlockTokens in its document, the document's
  // end or a piece border. A matter of kernel speed; results do not depend on it.
  bool require_block_alignment = false;
};

void verify_plan(const TokenLayout& layout, const AttentionPlan& plan,
                 const VerifyOptions& options = {});

// Verifies the plans of all chunks, and that resident rows were left by plans run before in the
// same band of `band` chunks: forward in order, backward in reverse.
void verify_chunk_plans(const TokenLayout& layout, const std::vector<ChunkPlans>& plans, int band,
                        const VerifyOptions& options = {});

}  // namespace longspan
