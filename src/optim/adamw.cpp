#include "optim/adamw.h"

#include <cmath>

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

double bias_correction(double beta, int64_t step) {
  LONGSPAN_CHECK(step >= 1, "step ", step);
  // 1 - beta^step loses digits when beta is near 1; expm1 keeps them.
  return beta == 0 ? 1.0 : -std::expm1(static_cast<double>(step) * std::log(beta));
}

}  // namespace longspan
