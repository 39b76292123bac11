// The published scheduler of core attention disaggregation, as published: the planner to beat.
//
// Items are head-tail pairs: rows [x, y) of a document from the front and their mirror image from
// the end, which cost q (L + 1) pairs for q rows a side. A document that spills over ranks gives
// each its share, half from the front and half from the end. Then, for each deficit server by
// falling deficit, until its deficit is below epsilon of the mean: of all items on surplus servers
// take the one with the most pairs for each byte, the bytes counted as q query rows and the keys
// of the whole document; move it whole, or split its inner rows off at any token.
//
// Its weaknesses are kept: donors are never checked, so surplus may stay on one of them; a server
// stores keys once for each task; keys that a receiver has already count in the score of a move;
// the cost is pairs only; cuts fall anywhere.
//
// Documents of odd length, which it refuses, have a middle row without mirror image here.
// Pure; any thread.
#pragma once

#include "baselines/baseline.h"

namespace longspan {

struct PublishedOptions {
  double epsilon = 0.1;
  // Of a query row and of a key row, in the score of a move.
  double query_bytes = 2;
  double key_bytes = 1;
};

Baseline published_greedy(const BaselineInput& input, const PublishedOptions& options);

}  // namespace longspan
