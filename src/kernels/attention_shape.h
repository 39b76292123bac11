// The shape of core attention and its unit of work, on raw rows.
//
// Legend: T query rows, N key rows, H query heads, G key/value heads (H a multiple of G; query head
// h reads key head h / (H / G)), K head width. q, o: [T, H, K]; k, v: [N, G, K]; lse, delta:
// [T, H]. Scores are scale * q.k; LSE is the natural logarithm of the sum of their exponentials; a
// row that sees no key has o = 0 and LSE = -infinity.
//
//   AttentionTile tile{.query_rows = 128, .key_rows = 512, .diagonal = 384};  // causal, last rows
//   tile.visible_keys(0) == 385;
//
// Values.
#pragma once

#include <algorithm>
#include <cstdint>

namespace longspan {

struct AttentionShape {
  int64_t heads = 1;
  int64_t key_heads = 1;
  int64_t head_width = 1;
  double scale = 1;

  int64_t query_row_size() const { return heads * head_width; }
  int64_t key_row_size() const { return key_heads * head_width; }
  int64_t key_head(int64_t head) const { return head / (heads / key_heads); }
};

// Query row r of the tile sees its keys [0, r + diagonal], as far as they exist.
struct AttentionTile {
  int64_t query_rows = 0;
  int64_t key_rows = 0;
  int64_t diagonal = 0;

  int64_t visible_keys(int64_t query_row) const {
    return std::clamp<int64_t>(query_row + diagonal + 1, 0, key_rows);
  }
};

}  // namespace longspan
