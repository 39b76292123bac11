// The buffers of a running step, by the keys that the schedule gives them.
//
// Why apart from the executor: what is alive, and how many bytes that is, is asked for by accounts
// too.
//
//   Buffer& hidden = table.write({BufferKind::kHidden, 0, layer, chunk});     // made if it is not
//   there const Buffer& query = table.read(key);                                    //
//   InternalError if it is not there table.drop(key);  table.held_bytes();
//
// Private to train/; one rank, on its thread.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <map>
#include <memory>
#include <vector>

#include "attention/attention_pass.h"
#include "attention/row_store.h"
#include "layers/segment.h"
#include "mix/sequence_mix.h"
#include "schedule/step_schedule.h"

namespace longspan {

// What a buffer of the schedule holds; which fields are in use follows from its kind.
struct Buffer {
  std::vector<at::Tensor> tensors;
  std::unique_ptr<Segment> segment;
  std::unique_ptr<AttentionForwardPass> forward_pass;
  std::unique_ptr<AttentionBackwardPass> backward_pass;
  RowStore rows;
  std::unique_ptr<RowAccumulator> sums;
  std::vector<Range> carried_rows;  // of a document that goes on: lines of `rows`, or of `sums`
  MixContext context;
  std::unique_ptr<MixContextGradient> context_gradient;
  bool gradient_is_whole = false;  // not only of a carried context
};

inline bool is_context(BufferKind kind) {
  return kind == BufferKind::kContext || kind == BufferKind::kCarriedContext;
}

class BufferTable {
 public:
  Buffer& write(const BufferKey& key) { return buffers_[key]; }
  Buffer& read(const BufferKey& key);
  Buffer* find(const BufferKey& key);
  void drop(const BufferKey& key) { buffers_.erase(key); }
  // InternalError naming a buffer that is left.
  void check_empty() const;
  // Bytes of all buffers, storages counted once. Weights and gradients live in the ParameterStore:
  // they are noted here, and count nothing.
  int64_t held_bytes() const;

 private:
  std::map<BufferKey, Buffer> buffers_;
};

}  // namespace longspan
