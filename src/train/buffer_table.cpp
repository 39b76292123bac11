#include "train/buffer_table.h"

#include "base/check.h"

namespace longspan {

namespace {

void add_rows(const RowStore& rows, StorageSet& storages) {
  for (int32_t source = 0; source < rows.num_sources(); ++source) {
    for (const at::Tensor& tensor : rows.tensors(source)) storages.add(tensor);
  }
}

}  // namespace

Buffer* BufferTable::find(const BufferKey& key) {
  const auto found = buffers_.find(key);
  return found == buffers_.end() ? nullptr : &found->second;
}

Buffer& BufferTable::read(const BufferKey& key) {
  Buffer* buffer = find(key);
  LONGSPAN_CHECK(buffer != nullptr, describe(key), " is not there");
  return *buffer;
}

void BufferTable::check_empty() const {
  LONGSPAN_CHECK(buffers_.empty(), buffers_.size(), " buffers are left, first ",
                 describe(buffers_.begin()->first));
}

int64_t BufferTable::held_bytes() const {
  StorageSet storages;
  for (const auto& [key, buffer] : buffers_) {
    for (const at::Tensor& tensor : buffer.tensors) storages.add(tensor);
    if (buffer.segment) buffer.segment->add_storages(storages);
    add_rows(buffer.rows, storages);
    add_rows(buffer.context.rows, storages);
    add_rows(buffer.context.index_rows, storages);
    for (const at::Tensor& tensor : buffer.context.tensors) storages.add(tensor);
    if (buffer.sums) add_rows(buffer.sums->store(), storages);
    if (!buffer.context_gradient) continue;
    for (const at::Tensor& tensor : buffer.context_gradient->tensors) storages.add(tensor);
    if (buffer.context_gradient->rows) add_rows(buffer.context_gradient->rows->store(), storages);
  }
  return storages.bytes();
}

}  // namespace longspan
