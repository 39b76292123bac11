#include "comm/wire.h"

#include <algorithm>
#include <cstring>
#include <iterator>
#include <thread>

#include "base/check.h"
#include "base/narrow.h"

namespace longspan {

std::vector<std::byte> pack(Envelope head, std::string_view text, ConstBytes payload) {
  head.text_bytes = narrow<int32_t>(text.size());
  std::vector<std::byte> bytes(sizeof(Envelope) + text.size() + payload.size());
  std::memcpy(bytes.data(), &head, sizeof(Envelope));
  std::copy_n(std::as_bytes(std::span(text)).begin(), text.size(),
              bytes.begin() + sizeof(Envelope));
  std::copy(payload.begin(), payload.end(),
            bytes.end() - static_cast<std::ptrdiff_t>(payload.size()));
  return bytes;
}

IncomingEnvelope unpack(int source, ConstBytes bytes) {
  IncomingEnvelope envelope;
  envelope.source = source;
  LONGSPAN_CHECK(bytes.size() >= sizeof(Envelope), "an envelope of ", bytes.size(), " bytes");
  std::memcpy(&envelope.head, bytes.data(), sizeof(Envelope));
  const auto text_bytes = static_cast<size_t>(envelope.head.text_bytes);
  LONGSPAN_CHECK(bytes.size() >= sizeof(Envelope) + text_bytes, "an envelope of ", bytes.size(),
                 " bytes with a text of ", text_bytes);
  const ConstBytes text = bytes.subspan(sizeof(Envelope), text_bytes);
  std::transform(text.begin(), text.end(), std::back_inserter(envelope.text),
                 [](std::byte byte) { return static_cast<char>(byte); });
  const ConstBytes payload = bytes.subspan(sizeof(Envelope) + text_bytes);
  envelope.payload.assign(payload.begin(), payload.end());
  return envelope;
}

Wire::Sleeper Wire::sleeper() const {
  return [](std::chrono::microseconds time) { std::this_thread::sleep_for(time); };
}

}  // namespace longspan
