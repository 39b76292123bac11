// A piece of work that all ranks do and that counts as done only if it worked on every rank.
//
// Why: a disk that is full on one host must not leave the others waiting, nor end them with another
// error than the one that has it. Every rank throws the same UserError, that of the lowest rank
// that failed, so every process exits alike.
//
//   agree(comm, "save step 12", [&] { write_my_part(); });
//
// Only UserErrors are agreed upon: anything else (a broken invariant, a lost rank) leaves at once
// and the rank launcher ends the run. Collective; the body itself must not communicate, or all
// ranks must get through its communication before they fail.
#pragma once

#include <functional>
#include <string_view>

#include "comm/communicator.h"

namespace longspan {

void agree(Communicator& comm, std::string_view op, const std::function<void()>& body);

}  // namespace longspan
