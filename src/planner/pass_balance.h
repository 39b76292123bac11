// Pass "balance": servers above the level give work to servers below it.
//
// The level is what every server would carry if all were equally busy, speeds and base times
// counted. A server above it gives away stretches of queries of its longest documents, since they
// carry the most work for each byte; a server below takes as much as it lacks, of one document if
// it can, so that each document's keys travel to few servers. Servers that hold some of
// the document's keys come first, then those of the same node. Stretches are cut at 128-blocks,
// from the end of a tile that costs fewer bytes.
//
//   balance(epsilon, &draft);
//
// Afterwards no server that could give is above (1 + epsilon) times the level by more than one row
// of tiles, unless the memory cap forbids it. Tiles without a server are placed.
//
// A server that settles remainders of several long documents gets the keys of each, maybe alone in
// its node, and the whole step waits for it. With `keys_in_time` no server takes what would keep it
// waiting for keys beyond the window: it stays below the level, the others go above it. One thread.
#pragma once

#include "planner/tile_draft.h"

namespace longspan {

void balance(double epsilon, TileDraft* draft, bool keys_in_time = false);

}  // namespace longspan
