#include "attention/round_exchange.h"

#include <ATen/ops/empty.h>

#include "base/check.h"

namespace longspan {
namespace {

// The peers of this rank in a round, each with the transfers between them, in wire order.
template <typename PeerOf>
std::map<int, std::vector<Transfer>> by_peer(const Round& round, const PeerOf& peer_of) {
  std::map<int, std::vector<Transfer>> transfers;
  for (const Transfer& transfer : round.transfers) {
    const int peer = peer_of(transfer);
    if (peer >= 0) transfers[peer].push_back(transfer);
  }
  return transfers;
}

std::span<std::byte> bytes_of(const at::Tensor& buffer) {
  return {static_cast<std::byte*>(buffer.data_ptr()), static_cast<size_t>(buffer.numel())};
}

}  // namespace

RoundExchange::RoundExchange(const std::vector<Round>& rounds, std::vector<MessageField> fields,
                             const MessageTypes& types, Communicator& comm, at::Device device,
                             int64_t tag, std::string op)
    : rounds_(rounds),
      fields_(std::move(fields)),
      types_(types),
      comm_(comm),
      device_(device),
      tag_(tag),
      op_(std::move(op)) {}

void RoundExchange::start(int round, const RowStore& query_rows, const RowStore& key_rows) {
  LONGSPAN_CHECK(round == num_started_ && round < num_rounds(), op_, ": round ", round,
                 " started, but ", num_started_, " of ", num_rounds(), " were started before");
  num_started_ += 1;
  const int rank = comm_.rank();
  const Round& transfers = rounds_[static_cast<size_t>(round)];
  const std::string op = text(op_, " round ", round);
  RoundInFlight& flight = in_flight_[round];
  RoundBytes bytes;
  for (const auto& [source, incoming] : by_peer(transfers, [&](const Transfer& transfer) {
         return transfer.destination == rank ? transfer.source : -1;
       })) {
    RowMessage message(incoming, fields_, types_);
    at::Tensor buffer = at::empty({message.bytes()}, at::TensorOptions(at::kByte).device(device_));
    bytes.receive += message.bytes();
    Work work = comm_.receive(source, tag_ + round, op, bytes_of(buffer));
    flight.receives.push_back({std::move(message), std::move(buffer), std::move(work)});
  }
  for (const auto& [destination, outgoing] : by_peer(transfers, [&](const Transfer& transfer) {
         return transfer.source == rank ? transfer.destination : -1;
       })) {
    RowMessage message(outgoing, fields_, types_);
    at::Tensor buffer = message.pack(query_rows, key_rows, device_);
    bytes.send += message.bytes();
    Work work = comm_.send(destination, tag_ + round, op, bytes_of(buffer));
    flight.sends.push_back({std::move(message), std::move(buffer), std::move(work)});
  }
  message_bytes_.push_back(bytes);
}

std::vector<RowMessage::Arrival> RoundExchange::finish(int round) {
  LONGSPAN_CHECK(round == num_finished_ && round < num_started_, op_, ": round ", round,
                 " finished, but ", num_finished_, " were finished and ", num_started_,
                 " started before");
  RoundInFlight& flight = in_flight_.at(round);
  std::vector<RowMessage::Arrival> arrivals;
  for (InFlight& receive : flight.receives) {
    receive.work.wait();
    for (RowMessage::Arrival& arrival : receive.message.unpack(receive.buffer)) {
      arrivals.push_back(std::move(arrival));
    }
  }
  for (InFlight& send : flight.sends) send.work.wait();
  in_flight_.erase(round);
  num_finished_ += 1;
  return arrivals;
}

}  // namespace longspan
