// Rows of the line that lie with other ranks: fetched from their homes, gradients given back.
//
// Why: what a token looks back at may lie anywhere: the 3 tokens before a short convolution's piece
// (pieces may be shorter than that), latents that a query selected. Who wants which lines is known
// on every rank, so both sides of every message know its size and nothing but rows travels.
//
//   LineExchange exchange(layout, chunk, wanted, rank);         // wanted[r]: lines of rank r
//   RowStore rows = exchange.fetch(own, fields, comm, tag, "latents, layer 3, chunk 1");
//   rows.rows({100, 103});                                       // own rows and fetched ones
//   exchange.give_back(gradients, fields, own_sums, comm, tag, op);
//
// Homes are pieces of chunks [0, chunk]; a rank's rows of all those chunks are one store (RowStore
// joins several). The sum that an owner builds has a fixed order: rank 0's part first, its own at
// its own place.
// Contract: fetch and give_back are collective over the ranks of the layout; they use tags
// [tag, tag + fields). A rank without rows and without wishes takes part with an empty store.
// Thread contract: immutable; one rank's thread.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <string>
#include <vector>

#include "attention/row_store.h"
#include "comm/communicator.h"
#include "layout/token_layout.h"

namespace longspan {

// One tensor of the rows that travel: the shape of a row, its type and device.
struct LineField {
  std::vector<int64_t> row_shape;
  at::TensorOptions options;
};

class LineExchange {
 public:
  // `wanted[r]`: the lines of rank r, sorted and disjoint, the same on every rank; its own lines
  // among them stay where they are. InternalError for a line that lies in a later chunk.
  LineExchange(const TokenLayout& layout, int chunk, const std::vector<std::vector<Range>>& wanted,
               int rank);

  // The rows of `own`, and those fetched. Tensor i of every source in `own` that others want rows
  // of is of fields[i].
  RowStore fetch(const RowStore& own, const std::vector<LineField>& fields, Communicator& comm,
                 int64_t tag, const std::string& op) const;

  // `gradients` holds rows for all wanted lines of this rank. Each is added to the sums of its
  // owner; `own` takes what others give for rows of this rank, and this rank's own part.
  void give_back(const RowStore& gradients, const std::vector<LineField>& fields,
                 RowAccumulator& own, Communicator& comm, int64_t tag, const std::string& op) const;

  // Lines that come from, or go to, each rank; those of this rank itself are its own wishes.
  const std::vector<Range>& incoming(int owner) const { return incoming_[index(owner)]; }
  const std::vector<Range>& outgoing(int wisher) const { return outgoing_[index(wisher)]; }

 private:
  size_t index(int rank) const { return static_cast<size_t>(rank); }

  int rank_ = 0;
  std::vector<std::vector<Range>> incoming_;  // by owner
  std::vector<std::vector<Range>> outgoing_;  // by who wants them
};

}  // namespace longspan
