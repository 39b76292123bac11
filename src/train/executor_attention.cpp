// Core attention of a step: passes over an attention plan, and keys and values that are carried.
#include "base/check.h"
#include "device/device.h"
#include "train/executor_step.h"

namespace longspan {
namespace {

using Kind = OperationKind;

template <typename AttentionPass>
void step_of(AttentionPass& pass, const Operation& operation) {
  switch (operation.kind) {
    case Kind::kAttentionOutStart:
      return pass.start_out(operation.index);
    case Kind::kAttentionOutFinish:
      return pass.finish_out(operation.index);
    case Kind::kAttentionLaunch:
      return pass.run_group(operation.index);
    case Kind::kAttentionBackStart:
      return pass.start_back(operation.index);
    default:
      return pass.finish_back(operation.index);
  }
}

}  // namespace

// The rows that the pass of this chunk may read here, wherever the schedule keeps them.
RowStore ExecutorStep::key_rows(const Operation& operation) {
  RowStore rows;
  for (const BufferKey& key : operation.reads) {
    if (is_context(key.kind)) rows.add(buffers_.read(key).rows);
  }
  return rows;
}

std::string ExecutorStep::attention_name(const Operation& operation) const {
  return text("attention ", pass_name(operation.pass), ", layer ", operation.layer, ", chunk ",
              operation.chunk, ", micro-batch ", operation.micro_batch);
}

AttentionPassOptions ExecutorStep::attention_options(const Operation& operation) const {
  return {.shape = model_.attention_shape(),
          .type = model_.scalar_type(),
          .tag = tag(operation),
          .op = attention_name(operation),
          .device = model_.device()};
}

const ChunkPlans& ExecutorStep::plans(const Operation& operation) const {
  return micro_batch(operation).plans[static_cast<size_t>(operation.chunk)];
}

void ExecutorStep::begin_attention(const Operation& operation) {
  if (operation.pass == Pass::kBackward) return begin_backward(operation);
  begin_forward(operation);
}

void ExecutorStep::begin_forward(const Operation& operation) {
  auto pass = std::make_unique<AttentionForwardPass>(plans(operation).forward, layout(operation),
                                                     comm_, attention_options(operation));
  pass->begin(read(operation, BufferKind::kMixInputs).tensors.at(0), key_rows(operation));
  write(operation, BufferKind::kAttentionPass).forward_pass = std::move(pass);
}

void ExecutorStep::begin_backward(const Operation& operation) {
  auto pass = std::make_unique<AttentionBackwardPass>(plans(operation).backward, layout(operation),
                                                      comm_, attention_options(operation));
  const Buffer& output = read(operation, BufferKind::kMixOutput);
  Buffer& buffer = write(operation, BufferKind::kAttentionPass);
  buffer.sums = std::make_unique<RowAccumulator>(key_value_gradients(operation));
  pass->begin({.q_THK = read(operation, BufferKind::kMixInputs).tensors.at(0),
               .o_THK = output.tensors.at(0),
               .lse_TH = output.tensors.at(1),
               .d_o_THK = read(operation, BufferKind::kOutputGradient).tensors.at(0)},
              key_rows(operation), *buffer.sums);
  buffer.backward_pass = std::move(pass);
}

// The sums of dK and dV of all own rows that this chunk looks back at, as one store.
RowStore ExecutorStep::key_value_gradients(const Operation& operation) {
  RowStore all;
  for (const BufferKey& key : operation.reads) {
    if (!is_context(key.kind)) continue;
    const Range whole = layout(operation).piece(key.chunk, comm_.rank());
    const std::vector<Range> lines =
        key.kind == BufferKind::kContext ? normalize({whole}) : buffers_.read(key).carried_rows;
    Buffer& buffer =
        buffers_.write({BufferKind::kContextGradient, key.micro_batch, key.layer, key.chunk});
    grow_sums(lines, buffer);
    all.add(buffer.sums->store());
  }
  return all;
}

// Later bands have summed the carried rows only; from the band's own backward on all its rows
// count.
void ExecutorStep::grow_sums(const std::vector<Range>& lines, Buffer& buffer) {
  if (buffer.sums && buffer.carried_rows == lines) return;
  const AttentionShape& shape = model_.attention_shape();
  const std::vector<int64_t> row = {shape.key_heads, shape.head_width};
  auto grown = std::make_unique<RowAccumulator>(
      lines, std::vector<std::vector<int64_t>>{row, row},
      model_.tensors().dtype(accumulate_type(model_.scalar_type())));
  if (buffer.sums) {
    for (const Range& line : buffer.carried_rows) grown->add(line, buffer.sums->rows(line));
  }
  buffer.sums = std::move(grown);
  buffer.carried_rows = lines;
}

void ExecutorStep::attention_step(const Operation& operation) {
  Buffer& buffer = read(operation, BufferKind::kAttentionPass);
  const bool launch = operation.kind == Kind::kAttentionLaunch;
  if (launch) comm_.activity(describe(operation));
  DeviceTimer& timer = launch ? attention_time_ : exchange_time_;
  timer.start();
  if (buffer.forward_pass) {
    step_of(*buffer.forward_pass, operation);
  } else {
    step_of(*buffer.backward_pass, operation);
  }
  timer.stop();
}

void ExecutorStep::end_attention(const Operation& operation) {
  Buffer& pass = read(operation, BufferKind::kAttentionPass);
  if (operation.pass == Pass::kBackward) {
    write(operation, BufferKind::kMixInputGradients).tensors = {pass.backward_pass->finish()};
    return;
  }
  auto result = pass.forward_pass->finish();
  write(operation, BufferKind::kMixOutput).tensors = {result.o_THK, result.lse_TH};
}

void ExecutorStep::carry_keys_and_values(const Operation& operation, Buffer& carried) {
  carried.carried_rows = layout(operation).carried_rows(operation.chunk, comm_.rank(),
                                                        /*first_later_chunk=*/operation.index);
  const RowStore& whole = read(operation, BufferKind::kContext).rows;
  for (const Range& line : carried.carried_rows) {
    std::vector<at::Tensor> kept;
    for (const at::Tensor& rows : whole.rows(line)) kept.push_back(rows.clone());
    carried.rows.add(line, std::move(kept));
  }
}

}  // namespace longspan
