#include "cost/attention_sizes.h"

namespace longspan {

double flops_per_pair(const AttentionSizes& shape, Direction direction) {
  const auto heads = static_cast<double>(shape.query_heads);
  const auto key = static_cast<double>(shape.key_width);
  const auto value = static_cast<double>(shape.value_width);
  const double width = direction == Direction::kForward ? 2 * (key + value) : 6 * key + 4 * value;
  return width * heads / static_cast<double>(shape.devices_per_server);
}

RowBytes row_bytes(const AttentionSizes& shape, Direction direction) {
  const auto devices = static_cast<double>(shape.devices_per_server);
  const auto values = static_cast<double>(shape.value_bytes) / devices;
  const auto sums = static_cast<double>(shape.accumulator_bytes) / devices;
  const auto heads = static_cast<double>(shape.query_heads);
  const double query = heads * static_cast<double>(shape.key_width);
  const double output = heads * static_cast<double>(shape.value_width);
  const double keys_and_values = static_cast<double>(shape.key_heads) *
                                 static_cast<double>(shape.key_width + shape.value_width);
  if (direction == Direction::kForward) {
    return {.query_out = query * values,
            .key_out = keys_and_values * values,
            .query_back = output * values + heads * sums,
            .query_back_partial = output * sums + heads * sums};
  }
  return {.query_out = (query + output) * values + 2 * heads * sums,
          .key_out = keys_and_values * values,
          .query_back = query * values,
          .query_back_partial = query * sums,
          .key_back = keys_and_values * values,
          .key_back_partial = keys_and_values * sums};
}

}  // namespace longspan
