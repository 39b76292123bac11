// Why a plan is what it is: what each pass of the planner changed, what binds, how far it is from
// the bound and why, and how the longest documents were cut.
//
//   std::cout << explain_plan(study.example, study.request.planner);
//
// The passes are switched on one after the other and the chunk is planned anew each time, by the
// planner itself: the rows of the table are real plans. Pure; any thread.
#pragma once

#include <string>

#include "plan_report/plan_study.h"

namespace longspan {

std::string explain_plan(const PlanExample& example, const AttentionPlannerOptions& options);

}  // namespace longspan
