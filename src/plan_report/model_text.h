// What the parts of a model's layers cost a rank, and what a token keeps in memory by stored mode:
// the part of `longspan plan` that is not about plans.
//
//   std::cout << model_text(study);      // hybrids: both; plain decoders: what is kept
//
// Costs are of the first batch: FLOPs and bytes of spec/part_work.h, times by the measured rates of
// cost/part_rates.h, "-" where nothing was measured. Ranks hold equally many tokens, so all parts
// but the planned one cost each rank the same; of index scoring the busiest rank counts. Pure; any
// thread.
#pragma once

#include <string>

#include "formats/json.h"
#include "plan_report/plan_study.h"

namespace longspan {

std::string model_text(const PlanStudy& study);
// `parts` and `kept_bytes_per_token`.
Json model_json(const PlanStudy& study);

}  // namespace longspan
