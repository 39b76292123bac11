#include "attention/row_messages.h"

#include <ATen/ops/empty.h>
#include <c10/core/ScalarType.h>

#include "attention/attention_buffers.h"
#include "attention/gpu_attention.h"
#include "base/check.h"
#include "device/device.h"

namespace longspan {
namespace {

int64_t row_size(const MessageField& field) {
  int64_t size = 1;
  for (const int64_t extent : field.row_shape) size *= extent;
  return size;
}

bool accumulates(const MessageField& field, const Transfer& transfer) {
  return field.type == MessageField::Type::kAccumulate ||
         (field.type == MessageField::Type::kResult && transfer.partial);
}

}  // namespace

RowMessage::RowMessage(const std::vector<Transfer>& transfers,
                       const std::vector<MessageField>& fields, const MessageTypes& types)
    : transfers_(join_touching(transfers)), fields_(fields) {
  for (const bool accumulate : {true, false}) {
    const at::ScalarType type = accumulate ? types.accumulate : types.compute;
    const auto element_bytes = static_cast<int64_t>(c10::elementSize(type));
    for (size_t field_idx = 0; field_idx < fields_.size(); ++field_idx) {
      const MessageField& field = fields_[field_idx];
      for (size_t idx = 0; idx < transfers_.size(); ++idx) {
        const Transfer& transfer = transfers_[idx];
        if (transfer.kind != field.kind || accumulates(field, transfer) != accumulate) continue;
        parts_.push_back({idx, field_idx, type, bytes_});
        bytes_ += transfer.line.size() * row_size(field) * element_bytes;
      }
    }
  }
}

at::Tensor RowMessage::view(const at::Tensor& buffer, const Part& part) const {
  const int64_t rows = transfers_[part.transfer_idx].line.size();
  std::vector<int64_t> sizes = {rows};
  sizes.insert(sizes.end(), fields_[part.field_idx].row_shape.begin(),
               fields_[part.field_idx].row_shape.end());
  const int64_t bytes =
      rows * row_size(fields_[part.field_idx]) * static_cast<int64_t>(c10::elementSize(part.type));
  return buffer.narrow(0, part.begin_bytes, bytes).view(part.type).view(sizes);
}

at::Tensor RowMessage::pack(const RowStore& query_rows, const RowStore& key_rows,
                            at::Device device) const {
  const at::Tensor buffer = at::empty({bytes_}, at::TensorOptions(at::kByte).device(device));
  std::vector<std::pair<at::Tensor, at::Tensor>> gpu_copies;
  for (const Part& part : parts_) {
    const Transfer& transfer = transfers_[part.transfer_idx];
    const RowStore& store = transfer.kind == RowKind::kQuery ? query_rows : key_rows;
    const at::Tensor target = view(buffer, part);
    for (const RowStore::Piece& piece : store.find(transfer.line)) {
      const at::Tensor source = store.tensors(piece.source).at(fields_[part.field_idx].tensor_idx);
      const at::Tensor to =
          target.narrow(0, piece.line.begin - transfer.line.begin, piece.line.size());
      const at::Tensor from = source.narrow(0, piece.rows.begin, piece.rows.size());
      const bool plain = from.is_contiguous() && from.scalar_type() == to.scalar_type();
      if (plain && !device.is_cpu()) {
        gpu_copies.emplace_back(from, to);
      } else {
        to.copy_(from);
      }
    }
  }
  if constexpr (kBuiltWithCuda) {
    if (!gpu_copies.empty()) gpu_copy(gpu_copies);
  }
  return buffer;
}

std::vector<RowMessage::Arrival> RowMessage::unpack(const at::Tensor& buffer) const {
  LONGSPAN_CHECK(buffer.numel() == bytes_, "a message of ", buffer.numel(), " bytes, expected ",
                 bytes_);
  std::vector<Arrival> arrivals;
  for (const Transfer& transfer : transfers_)
    arrivals.push_back({transfer.kind, transfer.line, {}});
  for (const Part& part : parts_) {
    std::vector<at::Tensor>& tensors = arrivals[part.transfer_idx].tensors;
    tensors.resize(std::max(tensors.size(), fields_[part.field_idx].tensor_idx + 1));
    tensors[fields_[part.field_idx].tensor_idx] = view(buffer, part);
  }
  return arrivals;
}

}  // namespace longspan
