// One leg of an attention pass: the plan's rounds of row transfers, posted and waited for.
//
//   RoundExchange out(plan.out, fields, types, comm, device, tag, "attention forward, layer 3,
//   out"); out.start(0, query_rows, key_rows);       // packs and posts; never blocks for (const
//   RowMessage::Arrival& rows : out.finish(0)) ...   // by source, then wire order
//
// Rounds start in order and finish in order. Arrivals are views of the message they came in, which
// lives as long as any of them. Messages use the tags tag + round.
// Thread contract: the rank's thread. If it is destroyed in flight, it waits for what it posted.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "attention/attention_buffers.h"
#include "attention/row_messages.h"
#include "comm/communicator.h"

namespace longspan {

class RoundExchange {
 public:
  RoundExchange(const std::vector<Round>& rounds, std::vector<MessageField> fields,
                const MessageTypes& types, Communicator& comm, at::Device device, int64_t tag,
                std::string op);

  void start(int round, const RowStore& query_rows, const RowStore& key_rows);
  std::vector<RowMessage::Arrival> finish(int round);

  int num_started() const { return num_started_; }
  int num_finished() const { return num_finished_; }
  int num_rounds() const { return static_cast<int>(rounds_.size()); }
  // Bytes of the messages that were made so far, by round.
  const std::vector<RoundBytes>& message_bytes() const { return message_bytes_; }

 private:
  struct InFlight {
    RowMessage message;
    at::Tensor buffer;
    Work work;  // after the buffer: it ends first
  };
  struct RoundInFlight {
    std::vector<InFlight> receives;  // by source
    std::vector<InFlight> sends;     // by destination
  };

  const std::vector<Round>& rounds_;
  std::vector<MessageField> fields_;
  MessageTypes types_;
  Communicator& comm_;
  at::Device device_;
  int64_t tag_;
  std::string op_;
  int num_started_ = 0;
  int num_finished_ = 0;
  std::map<int, RoundInFlight> in_flight_;
  std::vector<RoundBytes> message_bytes_;
};

}  // namespace longspan
