#include "profile/equal_tasks.h"

#include "kernels/packed_tiles.h"

namespace longspan {
namespace {

// Whole documents that a rank has to itself: where the kernels of a GPU give results in the type of
// the values, those are kept.
bool is_one_part(const EqualTasks& tasks) {
  return tasks.causal && tasks.query_rows == tasks.key_rows && tasks.query_rows <= kUnsplitRowsMax;
}

// Rows that no task has, between the two halves of the tasks: none of a launch's rows lie in one
// piece in a plan either, but short documents lie beside short documents.
int64_t gap_rows(const EqualTasks& tasks, at::Device device) {
  return device.is_cpu() || tasks.count == 1 ? 0 : 1;
}

std::vector<AttentionSlice> slices_of(const EqualTasks& tasks, int64_t gap) {
  std::vector<AttentionSlice> slices;
  for (int64_t task = 0; task < tasks.count; ++task) {
    const int64_t before = task < tasks.count / 2 ? 0 : gap;
    const Range queries = shift({task * tasks.query_rows, (task + 1) * tasks.query_rows}, before);
    const Range keys = shift({task * tasks.key_rows, (task + 1) * tasks.key_rows}, before);
    const int64_t diagonal = tasks.causal ? tasks.key_rows - tasks.query_rows : tasks.key_rows;
    slices.push_back({static_cast<int32_t>(task), 0, 0, queries, keys, diagonal});
  }
  return slices;
}

}  // namespace

LaunchTimes time_equal_tasks(const TimedHeads& heads, const EqualTasks& tasks,
                             const TimingOptions& options) {
  const int64_t gap = gap_rows(tasks, options.device);
  return time_launch({.heads = heads,
                      .slices = slices_of(tasks, gap),
                      .query_rows = tasks.count * tasks.query_rows + gap,
                      .key_rows = tasks.count * tasks.key_rows + gap,
                      .one_part = is_one_part(tasks)},
                     options);
}

}  // namespace longspan
