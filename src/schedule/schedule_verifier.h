// Proves of a step's schedules, before they run, what the executor relies on:
//   - every buffer is written before it is read, written once unless several operations add to it,
//     dropped exactly once, not touched after it is dropped, and none is left at the end;
//   - `waits_for` of an operation names the last writers of all that it touches;
//   - collectives stand in the same order on all ranks of their group, every receive has its send,
//     and no rank waits for ever: all ranks' lists are played against each other with sends that
//     never block.
//
// InternalError names rank and operation. Cost: linear in operations (times the number of ranks for
// the last point). Pure; any thread.
#pragma once

#include <vector>

#include "schedule/step_schedule.h"

namespace longspan {

// `schedules`: one for each rank, in rank order, built from the same options and micro-batches.
void verify_schedules(const ScheduleOptions& options,
                      const std::vector<MicroBatchPlan>& micro_batches,
                      const std::vector<StepSchedule>& schedules);

// The first two points alone, for one rank.
void verify_buffer_lives(const StepSchedule& schedule);

}  // namespace longspan
