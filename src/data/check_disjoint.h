// Makes sure that nothing is trained on that is also evaluated.
//
//   check_disjoint(*train, *evaluation);     // UserError naming the two documents
//
// Documents are compared as they are stored, by length and then by a hash of their tokens, so a
// file that was copied or packed is found too. Near copies are not. Reads the evaluation documents,
// and of the training documents those whose length occurs there. A pure function; any thread.
#pragma once

#include "data/document_source.h"

namespace longspan {

void check_disjoint(const DocumentSource& train, const DocumentSource& evaluation);

}  // namespace longspan
