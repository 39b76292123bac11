// Private to linear_attention/: pieces on the CPU, in float32 or float64.
//
//   std::unique_ptr<KdaPiece> piece = make_cpu_kda_piece(std::move(setup));     // checked before
//
// Heads and stretches are dealt to the rank's helper threads; a thread works through one head of
// one stretch, chunk by chunk, so bits do not depend on the number of threads. Thread contract: as
// KdaPiece.
#pragma once

#include "linear_attention/kda_piece.h"

namespace longspan {

std::unique_ptr<KdaPiece> make_cpu_kda_piece(KdaPiece::Setup setup);

}  // namespace longspan
