// Pass "refine": a small plan improved move by move until no move helps.
//
// Why: the other passes think in stretches of long documents and in many servers. Of a handful
// of tiles on few ranks with slow links, a better placement is often one exchange of tiles away.
// The draft is cut into cells of 128 x 128; cells, rows and columns of cells move to other servers,
// and pairs change places, as long as the makespan falls.
//
//   int trials = 1000;
//   if (is_small(draft)) refine(makespan_of, &trials, &draft);
//
// `makespan_of` judges a draft; `trials` says how many may still be judged, so the same moves are
// made on every machine. One thread.
#pragma once

#include <functional>

#include "planner/tile_draft.h"

namespace longspan {

bool is_small(const TileDraft& draft);

// Every tile must be placed.
void refine(const std::function<double(const TileDraft&)>& makespan_of, int* trials,
            TileDraft* draft);

}  // namespace longspan
