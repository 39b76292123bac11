#include "comm/mpi_wire.h"

#include <algorithm>
#include <utility>

#include "base/check.h"
#include "base/narrow.h"

namespace longspan {
namespace {

constexpr int kEnvelopeTag = 0;
// Below the size up to which MPI libraries send at once, whatever the receiver does.
constexpr size_t kEnvelopeBytes = 4000;
constexpr size_t kShortTextBytes = 200;

}  // namespace

size_t MpiWire::payload_limit_bytes() const {
  return kEnvelopeBytes - sizeof(Envelope) - kShortTextBytes;
}

MpiWire::MpiWire(int64_t part_bytes) : part_bytes_(part_bytes), incoming_(kEnvelopeBytes) {
  LONGSPAN_CHECK(part_bytes >= 1 && part_bytes <= INT32_MAX, "parts of ", part_bytes, " bytes");
  check(MPI_Comm_dup(MPI_COMM_WORLD, &comm_), "MPI_Comm_dup");
  check(MPI_Comm_set_errhandler(comm_, MPI_ERRORS_RETURN), "MPI_Comm_set_errhandler");
  check(MPI_Comm_rank(comm_, &rank_), "MPI_Comm_rank");
  check(MPI_Comm_size(comm_, &size_), "MPI_Comm_size");
  int* limit = nullptr;
  int found = 0;
  check(MPI_Comm_get_attr(comm_, MPI_TAG_UB, &limit, &found), "MPI_Comm_get_attr");
  LONGSPAN_CHECK(found != 0, "MPI_TAG_UB is not set");
  largest_tag_ = *limit;
  tags_in_use_.resize(static_cast<size_t>(size_));
  requests_.push_back(MPI_REQUEST_NULL);
  carried_.emplace_back();
  listen();
}

MpiWire::~MpiWire() = default;

void MpiWire::check(int result, const char* call) const {
  if (result == MPI_SUCCESS) return;
  char message[MPI_MAX_ERROR_STRING] = {};
  int length = 0;
  MPI_Error_string(result, message, &length);
  throw DistributedError(text("rank ", rank_, ": ", call, " failed: ", message));
}

void MpiWire::listen() {
  check(MPI_Irecv(incoming_.data(), narrow<int>(incoming_.size()), MPI_BYTE, MPI_ANY_SOURCE,
                  kEnvelopeTag, comm_, &requests_[0]),
        "MPI_Irecv");
}

void MpiWire::send(int destination, Envelope head, std::string_view text, ConstBytes payload) {
  const size_t room = kEnvelopeBytes - sizeof(Envelope) - payload.size();
  LONGSPAN_CHECK(payload.size() <= payload_limit_bytes(), "payload of ", payload.size(), " bytes");
  text = text.substr(0, std::min(room, payload.empty() ? room : kShortTextBytes));
  std::vector<std::byte> bytes = pack(head, text, payload);
  MPI_Request request = MPI_REQUEST_NULL;
  check(MPI_Isend(bytes.data(), narrow<int>(bytes.size()), MPI_BYTE, destination, kEnvelopeTag,
                  comm_, &request),
        "MPI_Isend");
  requests_.push_back(request);
  carried_.push_back({.bulk = nullptr, .envelope = std::move(bytes)});
}

template <typename Start>
std::shared_ptr<Bulk> MpiWire::start_parts(size_t size_bytes, const Start& start) {
  const auto bulk = std::make_shared<Bulk>();
  bulk->progressed = std::chrono::steady_clock::now();
  const auto part = static_cast<size_t>(part_bytes_);
  for (size_t begin = 0; begin < size_bytes; begin += part) {
    MPI_Request request = MPI_REQUEST_NULL;
    start(begin, narrow<int>(std::min(part, size_bytes - begin)), &request);
    requests_.push_back(request);
    carried_.push_back({.bulk = bulk, .envelope = {}});
    ++bulk->parts_left;
  }
  return bulk;
}

std::shared_ptr<Bulk> MpiWire::send_bulk(int destination, int data_tag, ConstBytes data) {
  return start_parts(data.size(), [&](size_t begin, int count, MPI_Request* request) {
    check(MPI_Isend(data.data() + begin, count, MPI_BYTE, destination, data_tag, comm_, request),
          "MPI_Isend");
  });
}

std::shared_ptr<Bulk> MpiWire::receive_bulk(int source, int data_tag, MutableBytes data) {
  return start_parts(data.size(), [&](size_t begin, int count, MPI_Request* request) {
    check(MPI_Irecv(data.data() + begin, count, MPI_BYTE, source, data_tag, comm_, request),
          "MPI_Irecv");
  });
}

void MpiWire::cancel(const Bulk& bulk) {
  for (size_t i = 1; i < requests_.size(); ++i) {
    if (carried_[i].bulk.get() == &bulk) check(MPI_Cancel(&requests_[i]), "MPI_Cancel");
  }
}

int MpiWire::take_data_tag(int source) {
  std::set<int>& in_use = tags_in_use_[static_cast<size_t>(source)];
  int tag = kEnvelopeTag + 1;
  for (const int used : in_use) {
    if (used != tag) break;
    ++tag;
  }
  LONGSPAN_CHECK(tag <= largest_tag_, in_use.size(), " long messages in flight from rank ", source,
                 ", the MPI library has tags for ", largest_tag_);
  in_use.insert(tag);
  return tag;
}

void MpiWire::return_data_tag(int source, int data_tag) {
  tags_in_use_[static_cast<size_t>(source)].erase(data_tag);
}

std::vector<IncomingEnvelope> MpiWire::poll() {
  std::vector<IncomingEnvelope> arrived;
  std::vector<int> places(requests_.size());
  std::vector<MPI_Status> statuses(requests_.size());
  while (true) {
    int completed = 0;
    check(MPI_Testsome(narrow<int>(requests_.size()), requests_.data(), &completed, places.data(),
                       statuses.data()),
          "MPI_Testsome");
    if (completed == MPI_UNDEFINED || completed == 0) return arrived;
    events_ += completed;
    const auto now = std::chrono::steady_clock::now();
    for (int i = 0; i < completed; ++i) {
      const auto place = static_cast<size_t>(places[static_cast<size_t>(i)]);
      if (place == 0) {
        const MPI_Status& status = statuses[static_cast<size_t>(i)];
        int count = 0;
        check(MPI_Get_count(&status, MPI_BYTE, &count), "MPI_Get_count");
        arrived.push_back(
            unpack(status.MPI_SOURCE, ConstBytes(incoming_).first(static_cast<size_t>(count))));
        listen();
      } else if (Bulk* bulk = carried_[place].bulk.get()) {
        --bulk->parts_left;
        bulk->progressed = now;
      }
    }
    // The library has set the completed ones to MPI_REQUEST_NULL.
    size_t kept = 1;
    for (size_t i = 1; i < requests_.size(); ++i) {
      if (requests_[i] == MPI_REQUEST_NULL) continue;
      if (kept != i) {
        requests_[kept] = requests_[i];
        carried_[kept] = std::move(carried_[i]);
      }
      ++kept;
    }
    requests_.resize(kept);
    carried_.resize(kept);
  }
}

void MpiWire::close(bool together) {
  check(MPI_Cancel(&requests_[0]), "MPI_Cancel");
  check(MPI_Wait(&requests_[0], MPI_STATUS_IGNORE), "MPI_Wait");
  for (size_t i = 1; i < requests_.size(); ++i) {
    check(MPI_Request_free(&requests_[i]), "MPI_Request_free");
  }
  // The library may still read envelopes that nobody took.
  static std::vector<std::vector<Carried>> left_behind;
  left_behind.push_back(std::move(carried_));
  // Freeing takes all ranks; after a failure the communicator is left to the end of the process.
  if (together) check(MPI_Comm_free(&comm_), "MPI_Comm_free");
}

}  // namespace longspan
