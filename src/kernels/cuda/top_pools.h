// Lists of the best pools of each query on a GPU: scores enter them, lists merge, and at the end
// they become the selection. Twins of kernels/cpu/index_scoring.h.
//
//   cuda::enter_top_pools(shape, {scores, stride}, {first_position, rows, first_pool, pools},
//                         {list_scores, list_pools}, candidates, {.first = true, .last = true}, s);
//   cuda::merge_top_pools(shape, queries, from, into, stream);
//   cuda::selected_pools(shape, positions, rows, lists, width, selected, stream);
//
// A block of threads runs a query: it reads the scores once and gathers candidates, those above the
// running threshold, in shared memory. When that is full, a histogram says which of them cannot be
// among the best; the threshold rises and they are dropped. Behind the last pools the candidates
// are sorted. Score and pool together are one key without equals, so the result is exact, and the
// same in whatever order scores arrive: higher score first, then the lower pool; -0 is +0,
// not-a-number is -infinity. Lists are as the CPU's: in that order, pool -1 behind the last.
#pragma once

#include "kernels/cuda/cuda_types.h"
#include "kernels/cuda/index_scoring.h"
#include "kernels/sparse_attention_shape.h"

namespace longspan::cuda {

// The longest list that these kernels hold.
inline constexpr int64_t kMostTopPools = 1024;

// Lists [queries, top_pools].
template <typename A>
struct TopPoolLists {
  A* scores = nullptr;
  int32_t* pools = nullptr;
};

// Candidates of the queries of a block between its calls: memory of candidate_bytes<A>() for each.
template <typename A>
int64_t candidate_bytes();

// Consecutive queries of a document and consecutive pools of it.
struct EnteringRows {
  int64_t first_position = 0;
  int64_t queries = 0;
  int64_t first_pool = 0;
  int64_t pools = 0;
};

// Of the calls for one block of queries: the first one reads the lists, the last one writes them;
// in between candidates are kept.
struct EnteringTurn {
  bool first = true;
  bool last = true;
};

// Merges scores into lists, as far as each query sees their pools. Queries that need not choose are
// passed over. Rows of scores begin at multiples of 16 bytes.
template <typename A>
void enter_top_pools(const IndexShape& shape, const IndexScoreBlock<A>& block,
                     const EnteringRows& rows, const TopPoolLists<A>& lists, void* candidates,
                     const EnteringTurn& turn, Stream stream);

template <typename A>
void merge_top_pools(const IndexShape& shape, int64_t queries, const TopPoolLists<const A>& from,
                     const TopPoolLists<A>& into, Stream stream);

// Of each row the selected pools [width], ascending, then -1: those of its list if it must choose,
// else all it sees. A list with too few pools stops the process: the plan left keys out.
// `lists` may be null if no row must choose.
void selected_pools(const IndexShape& shape, const int32_t* positions, int64_t rows,
                    const int32_t* lists, int64_t width, int32_t* selected, Stream stream);

// flags[flag_bases[row] + pool] = 1 for every selected pool of every row.
void mark_selected_pools(const int32_t* selected, int64_t rows, int64_t width,
                         const int64_t* flag_bases, uint8_t* flags, Stream stream);

}  // namespace longspan::cuda
