// Pass "tiles": servers that took neighbouring queries of one document share its keys.
//
// Servers that each took some queries [a, b), [b, c) of a document need all keys up to b and c.
// If instead both take the queries [a, c) and half of the keys each, each key travels once; the
// queries then travel twice and their results come back in fp32, to be merged by LSE. The pass
// exchanges one for the other wherever that is fewer bytes, for runs of two servers and more, and
// keeps each server's load.
//
//   if (share_keys(&draft)) balance(epsilon, &draft);        // after a first balance
//
// One thread.
#pragma once

#include "planner/tile_draft.h"

namespace longspan {

// Returns whether any tiles changed.
bool share_keys(TileDraft* draft);

}  // namespace longspan
