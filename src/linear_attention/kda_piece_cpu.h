// Private to linear_attention/: pieces on the CPU, heads and stretches dealt to threads.
#pragma once

#include "linear_attention/kda_piece.h"

namespace longspan {

std::unique_ptr<KdaPiece> make_cpu_kda_piece(KdaPiece::Setup setup);

}  // namespace longspan
