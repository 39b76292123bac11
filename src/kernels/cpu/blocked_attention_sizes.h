// Block sizes of the blocked attention kernels.
//
//   for (int64_t row = 0; row < rows; row += query_block_rows(rows, keys)) ...
//
// Scores of a query block and a key block should stay in the second-level cache and still make
// matrix products of a fair size. A causal block computes half its rows' count of masked pairs for
// each row, which matters where a row sees few keys: blocks are finer there. Measured on two
// AVX2 cores, widths 64 and 128 (docs/numerics.md).
// Pure.
#pragma once

#include <cstdint>

namespace longspan {

inline constexpr int64_t kKeyBlockRows = 512;

// Equal parts of at most `largest` (a multiple of 16), all but the last a multiple of 16.
inline int64_t even_part(int64_t total, int64_t largest) {
  const int64_t parts = (total + largest - 1) / largest;
  return ((total + parts - 1) / parts + 15) / 16 * 16;
}

inline int64_t query_block_rows(int64_t total, int64_t keys) {
  return even_part(total, keys <= 256 ? 64 : 128);
}

inline int64_t key_block_rows(int64_t total) {
  return even_part(total, kKeyBlockRows);
}

}  // namespace longspan
