#include "observe/event_file.h"

#include "base/error.h"
#include "formats/little_endian.h"
#include "observe/crc32c.h"
#include "observe/machine.h"

namespace longspan {
namespace {

// Field numbers of the messages Event, Summary, Summary.Value and SessionLog.
constexpr uint32_t kEventWallTime = 1;
constexpr uint32_t kEventStep = 2;
constexpr uint32_t kEventFileVersion = 3;
constexpr uint32_t kEventSummary = 5;
constexpr uint32_t kEventSessionLog = 7;
constexpr uint32_t kSummaryValue = 1;
constexpr uint32_t kValueTag = 1;
constexpr uint32_t kValueSimple = 2;
constexpr uint32_t kSessionStatus = 1;
constexpr uint64_t kSessionStart = 1;

// The wire format of protobuf, as far as these messages need it.
class Message {
 public:
  void add_integer(uint32_t field, uint64_t value) {
    add_varint(field << 3);
    add_varint(value);
  }
  void add_double(uint32_t field, double value) {
    add_varint(field << 3 | 1);
    append_little_endian(bytes_, value);
  }
  void add_float(uint32_t field, float value) {
    add_varint(field << 3 | 5);
    append_little_endian(bytes_, value);
  }
  void add_bytes(uint32_t field, const std::string& value) {
    add_varint(field << 3 | 2);
    add_varint(value.size());
    bytes_ += value;
  }
  const std::string& bytes() const { return bytes_; }

 private:
  void add_varint(uint64_t value) {
    for (; value >= 0x80; value >>= 7) {
      bytes_ += static_cast<char>(static_cast<unsigned char>(value | 0x80));
    }
    bytes_ += static_cast<char>(static_cast<unsigned char>(value));
  }

  std::string bytes_;
};

Message new_event(int64_t step) {
  Message event;
  event.add_double(kEventWallTime, unix_seconds());
  event.add_integer(kEventStep, static_cast<uint64_t>(step));
  return event;
}

// A name that sorts behind those of earlier runs, and is free.
std::filesystem::path free_name(const std::filesystem::path& folder) {
  const std::string stem = text("events.out.tfevents.", static_cast<int64_t>(unix_seconds()), ".",
                                describe_machine().host);
  std::filesystem::path path = folder / stem;
  for (int number = 1; std::filesystem::exists(path); ++number) {
    path = folder / text(stem, ".", number);
  }
  return path;
}

}  // namespace

EventFile::EventFile(const std::filesystem::path& folder, std::optional<int64_t> resumed_step) {
  std::error_code error;
  std::filesystem::create_directories(folder, error);
  if (error) {
    throw UserError(text("cannot create the folder ", folder.string(), ": ", error.message()));
  }
  path_ = free_name(folder);
  stream_.open(path_, std::ios::binary);
  Message version;
  version.add_double(kEventWallTime, unix_seconds());
  version.add_bytes(kEventFileVersion, "brain.Event:2");
  write_record(version.bytes());
  if (resumed_step) {
    // Readers drop what stands at or above the step of a session's start.
    Message event = new_event(*resumed_step + 1);
    Message session;
    session.add_integer(kSessionStatus, kSessionStart);
    event.add_bytes(kEventSessionLog, session.bytes());
    write_record(event.bytes());
  }
}

void EventFile::add_scalars(int64_t step, const Scalars& values) {
  Message summary;
  for (const auto& [name, value] : values) {
    Message entry;
    entry.add_bytes(kValueTag, name);
    entry.add_float(kValueSimple, static_cast<float>(value));
    summary.add_bytes(kSummaryValue, entry.bytes());
  }
  Message event = new_event(step);
  event.add_bytes(kEventSummary, summary.bytes());
  write_record(event.bytes());
}

void EventFile::write_record(const std::string& payload) {
  std::string record;
  append_little_endian(record, uint64_t{payload.size()});
  append_little_endian(record, masked_crc32c(record));
  record += payload;
  append_little_endian(record, masked_crc32c(payload));
  stream_ << record << std::flush;
  if (!stream_) {
    throw UserError(text("cannot write ", path_.string(), ": is the disk full?"));
  }
}

}  // namespace longspan
