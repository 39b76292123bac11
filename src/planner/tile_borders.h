// Where to cut a tile's queries so that what comes before costs as much as wanted.
//
//   const int64_t border = border_at_cost(draft, tile, 0.25 * tile.cost_s);
//   draft.give_queries(idx, {tile.queries.begin, border}, 3);        // about a quarter of the work
//
// Cuts inside a tile fall on 128-blocks of its document. Pure; any thread.
#pragma once

#include "planner/tile_draft.h"

namespace longspan {

// The border of a tile's queries at which [queries.begin, border) cost `target_s` as nearly as
// 128-blocks of the document allow; the begin or the end if that is nearer.
int64_t border_at_cost(const TileDraft& draft, const Tile& tile, double target_s);

// The query at which [queries.begin, border) see about this share of the tile's pairs; no block's
// border. Costs grow about as pairs do.
int64_t border_at_share(const Tile& tile, double share);

}  // namespace longspan
