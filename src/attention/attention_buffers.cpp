#include "attention/attention_buffers.h"

#include <algorithm>

namespace longspan {
namespace {

// Elements of a row on the wire: of the compute type, of the accumulation type, and of results,
// whose type depends on the transfer.
struct WireRow {
  int64_t compute = 0;
  int64_t accumulate = 0;
  int64_t result = 0;
};

WireRow out_row(Direction direction, RowKind kind, const AttentionShape& shape) {
  if (kind == RowKind::kKeyValue) return {.compute = 2 * shape.key_row_size()};
  if (direction == Direction::kForward) return {.compute = shape.query_row_size()};
  return {.compute = 2 * shape.query_row_size(), .accumulate = 2 * shape.heads};
}

WireRow back_row(Direction direction, RowKind kind, const AttentionShape& shape) {
  if (kind == RowKind::kKeyValue) return {.result = 2 * shape.key_row_size()};
  if (direction == Direction::kForward) {
    return {.accumulate = shape.heads, .result = shape.query_row_size()};
  }
  return {.result = shape.query_row_size()};
}

template <typename RowOf>
std::vector<RoundBytes> round_bytes(const std::vector<Round>& rounds, int rank,
                                    const ElementBytes& element_bytes, const RowOf& row_of) {
  std::vector<RoundBytes> bytes;
  for (const Round& round : rounds) {
    RoundBytes sum;
    for (const Transfer& transfer : round.transfers) {
      const WireRow row = row_of(transfer.kind);
      const int64_t of_result = transfer.partial ? element_bytes.accumulate : element_bytes.compute;
      const int64_t row_bytes = row.compute * element_bytes.compute +
                                row.accumulate * element_bytes.accumulate + row.result * of_result;
      if (transfer.source == rank) sum.send += transfer.line.size() * row_bytes;
      if (transfer.destination == rank) sum.receive += transfer.line.size() * row_bytes;
    }
    bytes.push_back(sum);
  }
  return bytes;
}

}  // namespace

int64_t AttentionBufferSizes::total_bytes() const {
  int64_t total = home_result_bytes + away_result_bytes + delta_bytes;
  for (const std::vector<RoundBytes>* leg : {&out, &back}) {
    for (const RoundBytes& round : *leg) total += round.send + round.receive;
  }
  return total;
}

AttentionBufferSizes attention_buffer_sizes(const AttentionPlan& plan, const TokenLayout& layout,
                                            int rank, const AttentionShape& shape,
                                            const ElementBytes& element_bytes) {
  const Direction direction = plan.direction;
  AttentionBufferSizes sizes;
  sizes.out = round_bytes(plan.out, rank, element_bytes,
                          [&](RowKind kind) { return out_row(direction, kind, shape); });
  sizes.back = round_bytes(plan.back, rank, element_bytes,
                           [&](RowKind kind) { return back_row(direction, kind, shape); });
  const int64_t own_rows = layout.piece(plan.chunk, rank).size();
  const int64_t away_queries = total_size(away_rows(plan, layout, rank, RowKind::kQuery));
  const int64_t query_result = direction == Direction::kForward
                                   ? shape.query_row_size() + shape.heads
                                   : shape.query_row_size();
  sizes.home_result_bytes = own_rows * query_result * element_bytes.accumulate;
  if (element_bytes.compute != element_bytes.accumulate) {
    sizes.home_result_bytes += own_rows * shape.query_row_size() * element_bytes.compute;
  }
  sizes.away_result_bytes = away_queries * query_result * element_bytes.accumulate;
  if (direction == Direction::kBackward) {
    const int64_t away_keys = total_size(away_rows(plan, layout, rank, RowKind::kKeyValue));
    sizes.away_result_bytes += away_keys * 2 * shape.key_row_size() * element_bytes.accumulate;
    sizes.delta_bytes = own_rows * shape.heads * element_bytes.accumulate;
  }
  return sizes;
}

std::vector<Range> away_rows(const AttentionPlan& plan, const TokenLayout& layout, int rank,
                             RowKind kind) {
  const ServerPlan& server = plan.servers[static_cast<size_t>(rank)];
  std::vector<Range> rows = kind == RowKind::kQuery ? server.query_rows : server.key_rows;
  for (const Round& round : plan.back) {
    for (const Transfer& transfer : round.transfers) {
      if (transfer.destination == rank && transfer.kind == kind) rows.push_back(transfer.line);
    }
  }
  const std::vector<Range> own = kind == RowKind::kQuery
                                     ? std::vector<Range>{layout.piece(plan.chunk, rank)}
                                     : layout.pieces_before(plan.chunk + 1, rank);
  return subtract(normalize(std::move(rows)), normalize(own));
}

std::vector<Transfer> join_touching(const std::vector<Transfer>& transfers) {
  std::vector<Transfer> joined;
  for (const Transfer& transfer : transfers) {
    if (!joined.empty()) {
      Transfer& last = joined.back();
      if (last.kind == transfer.kind && last.partial == transfer.partial &&
          last.line.end == transfer.line.begin) {
        last.line.end = transfer.line.end;
        continue;
      }
    }
    joined.push_back(transfer);
  }
  return joined;
}

}  // namespace longspan
