// A study of plans as a person reads it, and as JSON.
//
//   std::cout << study_text(study);
//   write_json_atomic(path, study_json(study));
//
// The JSON has the forward figures of plan_figures.h at its top level, those of backward under
// `backward`, and under `baselines` the same for each baseline by name; `not_applicable` lists
// baselines that do not fit the batches. Plans of index scoring have no `backward`; `model` is what
// model_text.h says. `servers` describes the first batch. Pure; any thread.
#pragma once

#include <string>

#include "formats/json.h"
#include "plan_report/plan_study.h"

namespace longspan {

std::string study_text(const PlanStudy& study);
Json study_json(const PlanStudy& study);

// "compute", "send", "receive" or "nothing".
std::string binding_name(BindingConstraint binding);

}  // namespace longspan
