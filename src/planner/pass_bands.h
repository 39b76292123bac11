// Pass "bands": for a long document that lies over many ranks, queries meet keys where they live.
//
// Why: a document of 1M tokens over 64 ranks and 8 chunks has its keys spread over all ranks. If
// every rank kept its own 2K queries it would fetch the keys of the whole document. In a grid of
// g bands of ranks, each band works with the keys that its own ranks hold, the band's ranks share
// the chunk's queries, and partial results are merged by LSE:
//
//   bytes of a rank  ~  queries x g / ranks x (query row)  +  keys / g x (key row)
//
// The pass takes the g with the fewest bytes for each document, and leaves the draft as it is where
// that is g = 1. Tiles of bands are cut along queries so that the ranks of a band have equal work.
//
//   place_in_bands(&draft);       // on the home draft
//
// One thread.
#pragma once

#include "planner/tile_draft.h"

namespace longspan {

// Returns whether any document was placed so.
bool place_in_bands(TileDraft* draft);

}  // namespace longspan
