#include "data/check_disjoint.h"

#include <algorithm>
#include <map>
#include <span>
#include <utility>

#include "base/error.h"
#include "base/random.h"

namespace longspan {
namespace {

constexpr int64_t kReadTokens = int64_t{1} << 22;

uint64_t hash_document(const DocumentSource& source, int64_t document) {
  uint64_t hash = hash_bytes("");
  const int64_t length = source.length(document);
  for (int64_t begin = 0; begin < length; begin += kReadTokens) {
    const Range range{begin, std::min(begin + kReadTokens, length)};
    const DocumentContent part = source.read(document, range, kAsStored);
    const auto bytes = std::as_bytes(std::span(part.tokens));
    hash = hash_bytes({reinterpret_cast<const char*>(bytes.data()), bytes.size()}, hash);
  }
  return hash;
}

}  // namespace

void check_disjoint(const DocumentSource& train, const DocumentSource& evaluation) {
  std::map<int64_t, std::map<uint64_t, int64_t>> evaluated;  // length -> hash -> document
  for (int64_t document = 0; document < evaluation.count(); ++document) {
    const int64_t length = evaluation.length(document);
    if (length > 0) evaluated[length].emplace(hash_document(evaluation, document), document);
  }
  for (int64_t document = 0; document < train.count(); ++document) {
    const auto same_length = evaluated.find(train.length(document));
    if (same_length == evaluated.end()) continue;
    const auto same = same_length->second.find(hash_document(train, document));
    if (same == same_length->second.end()) continue;
    throw UserError(text("training document ", train.name(document), " is also evaluated, as ",
                         evaluation.name(same->second), "; take it out of one of the two"));
  }
}

}  // namespace longspan
