// Text from files and command lines, made fit for a message.
//
//   throw UserError(text(origin, ": \"", printable(word), "\" is not a number"));
//
// Why: a name may hold anything. Control characters other than line breaks and tabs are shown as
// \xHH, so that it can neither move a cursor nor hide the rest of a message. Pure; any thread.
#pragma once

#include <string>
#include <string_view>

namespace longspan {

std::string printable(std::string_view written);

}  // namespace longspan
