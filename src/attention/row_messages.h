// What one rank sends another in a round: which rows of which tensors, and where in the message.
//
// Why: sender and receiver derive the same message from the plan alone, so nothing but rows
// travels: all rows between two ranks in a round are one message of exactly their size.
//
//   RowMessage message(transfers_between(round, source, destination), fields, types);
//   at::Tensor buffer = message.pack(query_rows, key_rows, device);     // on the sender
//   for (RowMessage::Arrival& arrival : message.unpack(buffer)) ...  // views, on the receiver
//
// Layout: field after field, each with the rows of all its transfers in wire order; fields of the
// accumulation type stand first, so that every field is aligned to its own type.
// Values; one rank's thread.
#pragma once

#include <vector>

#include "attention/row_store.h"
#include "planner/attention_plan.h"

namespace longspan {

// A tensor of a store whose rows travel with one kind of rows.
struct MessageField {
  enum class Type { kCompute, kAccumulate, kResult };  // kResult: kAccumulate where partial

  RowKind kind = RowKind::kQuery;
  size_t tensor_idx = 0;  // in the sources of the store that holds this kind
  std::vector<int64_t> row_shape;
  Type type = Type::kCompute;
};

struct MessageTypes {
  at::ScalarType compute = at::kFloat;
  at::ScalarType accumulate = at::kFloat;
};

class RowMessage {
 public:
  // `transfers` of one pair of ranks in wire order; neighbours that touch travel as one.
  RowMessage(const std::vector<Transfer>& transfers, const std::vector<MessageField>& fields,
             const MessageTypes& types);

  int64_t bytes() const { return bytes_; }
  const std::vector<Transfer>& transfers() const { return transfers_; }

  at::Tensor pack(const RowStore& query_rows, const RowStore& key_rows, at::Device device) const;

  struct Arrival {
    RowKind kind = RowKind::kQuery;
    Range line;
    std::vector<at::Tensor> tensors;  // by tensor_idx; views of the buffer
  };
  std::vector<Arrival> unpack(const at::Tensor& buffer) const;

 private:
  // The rows of one transfer in one field.
  struct Part {
    size_t transfer_idx = 0;
    size_t field_idx = 0;
    at::ScalarType type = at::kFloat;
    int64_t begin_bytes = 0;
  };
  at::Tensor view(const at::Tensor& buffer, const Part& part) const;

  std::vector<Transfer> transfers_;
  std::vector<MessageField> fields_;
  std::vector<Part> parts_;
  int64_t bytes_ = 0;
};

}  // namespace longspan
