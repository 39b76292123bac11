// The size of every buffer of an attention pass, from plan and layout alone.
//
// Why: the memory of a run is known before it starts. The passes check that what they allocate has
// these sizes (attention_pass.h).
//
//   AttentionBufferSizes sizes = attention_buffer_sizes(plan, layout, rank, shape, {4, 4});
//   sizes.total_bytes();                                // upper bound: nothing freed in between
//
// Lives: received rows of the out leg and all results until the pass ends; sent messages until
// their round is finished; received partial results until they are merged. Inputs (q, k, v, dO, O)
// belong to the caller. Not counted: scratch of the kernels, a megabyte or so for each thread on
// CPU; on a GPU copies of rows for the calls of a launch (call_rows.h), and in backward a row of O
// for each query row that arrives. Pure; any thread.
#pragma once

#include <vector>

#include "kernels/attention_shape.h"
#include "planner/attention_plan.h"

namespace longspan {

struct ElementBytes {
  int64_t compute = 4;
  int64_t accumulate = 4;
};

struct RoundBytes {
  int64_t send = 0;
  int64_t receive = 0;
  bool operator==(const RoundBytes&) const = default;
};

struct AttentionBufferSizes {
  std::vector<RoundBytes> out;   // by round
  std::vector<RoundBytes> back;  // by round
  // O and LSE of the own piece; backward: dQ. The sums, and where they are not in the compute type,
  // O or dQ in it. An upper bound: rows of which nothing is summed have no sums.
  int64_t home_result_bytes = 0;
  int64_t away_result_bytes = 0;  // results of rows homed elsewhere; backward: with dK, dV
  int64_t delta_bytes = 0;        // backward: rowsum(dO * O) of the own piece

  int64_t total_bytes() const;
  bool operator==(const AttentionBufferSizes&) const = default;
};

AttentionBufferSizes attention_buffer_sizes(const AttentionPlan& plan, const TokenLayout& layout,
                                            int rank, const AttentionShape& shape,
                                            const ElementBytes& element_bytes);

// Rows homed elsewhere for which this rank holds results at some time: it computes them, or merges
// them on their way home. Normalized.
std::vector<Range> away_rows(const AttentionPlan& plan, const TokenLayout& layout, int rank,
                             RowKind kind);

// Neighbours that touch on the line and agree in all else become one.
std::vector<Transfer> join_touching(const std::vector<Transfer>& transfers);

}  // namespace longspan
