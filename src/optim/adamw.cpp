#include "optim/adamw.h"

#include "base/check.h"

namespace longspan {

double clip_factor(double norm, double max_norm) {
  LONGSPAN_CHECK(norm >= 0, "norm ", norm);
  if (!(max_norm >= 0)) {
    throw UserError(text("optimizer.clip = ", max_norm,
                         " is not a norm; give a positive number, or 0 for no clipping"));
  }
  return max_norm == 0 || norm <= max_norm ? 1.0 : max_norm / norm;
}

}  // namespace longspan
