// The sizes of a model's core attention that planning needs: FLOPs of a pair, bytes of a row.
//
//   AttentionSizes shape{.query_heads = 32, .key_heads = 8, .key_width = 128, .value_width = 128};
//   flops_per_pair(shape, Direction::kForward)          // 4 x 128 x 32
//   row_bytes(shape, Direction::kForward).query_out     // Q: 8,192 bytes
//
// A server may be several devices that split the heads among them (tensor parallelism, or a node
// that acts as one server); then all figures are those of one device. Values; pure functions.
#pragma once

#include <cstdint>

#include "cost/direction.h"

namespace longspan {

struct AttentionSizes {
  int64_t query_heads = 1;
  int64_t key_heads = 1;
  int64_t key_width = 1;    // of a head's queries and keys
  int64_t value_width = 1;  // of a head's values and outputs
  int64_t value_bytes = 2;
  int64_t accumulator_bytes = 4;
  int64_t devices_per_server = 1;
  bool operator==(const AttentionSizes&) const = default;
};

// The flash convention: 2 (d_qk + d_v) for each query head forward, 6 d_qk + 4 d_v backward.
double flops_per_pair(const AttentionSizes& shape, Direction direction);

// Bytes of one row on the legs of a plan (planner/attention_plan.h).
struct RowBytes {
  double query_out = 0;   // forward Q; backward Q, dO, LSE and delta
  double key_out = 0;     // K and V
  double query_back = 0;  // forward O and LSE; backward dQ
  double query_back_partial = 0;
  double key_back = 0;  // backward dK and dV
  double key_back_partial = 0;
  bool operator==(const RowBytes&) const = default;
};

RowBytes row_bytes(const AttentionSizes& shape, Direction direction);

}  // namespace longspan
