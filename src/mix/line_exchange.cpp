#include "mix/line_exchange.h"

#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>

#include "base/check.h"

namespace longspan {
namespace {

using Tensors = std::vector<at::Tensor>;

MutableBytes bytes_of(const at::Tensor& tensor) {
  return {static_cast<std::byte*>(tensor.data_ptr()), tensor.nbytes()};
}

at::Tensor empty_rows(const LineField& field, int64_t rows) {
  std::vector<int64_t> sizes = {rows};
  sizes.insert(sizes.end(), field.row_shape.begin(), field.row_shape.end());
  return at::empty(sizes, field.options);
}

void check_rows(const at::Tensor& rows, const LineField& field, const std::string& op) {
  LONGSPAN_CHECK(rows.sizes().slice(1) == at::IntArrayRef(field.row_shape) &&
                     rows.scalar_type() == c10::typeMetaToScalarType(field.options.dtype()),
                 op, ": rows ", rows.toString(), " ", rows.sizes(), ", expected rows of ",
                 at::IntArrayRef(field.row_shape));
}

// By rank and field: the rows of the lines, one after the other.
std::vector<Tensors> packed(const RowStore& store, const std::vector<std::vector<Range>>& lines,
                            const std::vector<LineField>& fields, int rank, const std::string& op) {
  std::vector<Tensors> messages(lines.size());
  for (size_t peer = 0; peer < lines.size(); ++peer) {
    if (lines[peer].empty() || peer == static_cast<size_t>(rank)) continue;
    std::vector<Tensors> parts(fields.size());
    for (const Range& line : lines[peer]) {
      for (const RowStore::Piece& piece : store.find(line)) {
        const Tensors views = store.views(piece);
        LONGSPAN_CHECK(views.size() == fields.size(), op, ": rows of ", views.size(),
                       " tensors, but ", fields.size(), " travel");
        for (size_t i = 0; i < fields.size(); ++i) {
          check_rows(views[i], fields[i], op);
          parts[i].push_back(views[i]);
        }
      }
    }
    for (const Tensors& of_field : parts) messages[peer].push_back(at::cat(of_field).contiguous());
  }
  return messages;
}

std::vector<Tensors> empty_messages(const std::vector<std::vector<Range>>& lines,
                                    const std::vector<LineField>& fields, int rank) {
  std::vector<Tensors> messages(lines.size());
  for (size_t peer = 0; peer < lines.size(); ++peer) {
    if (lines[peer].empty() || peer == static_cast<size_t>(rank)) continue;
    for (const LineField& field : fields) {
      messages[peer].push_back(empty_rows(field, total_size(lines[peer])));
    }
  }
  return messages;
}

// Fills `incoming` from the other ranks' `outgoing`, field by field.
void exchange(const std::vector<Tensors>& outgoing, const std::vector<Tensors>& incoming,
              size_t fields, Communicator& comm, int64_t tag, const std::string& op) {
  std::vector<Work> in_flight;
  for (size_t field = 0; field < fields; ++field) {
    std::vector<ConstBytes> send(outgoing.size());
    std::vector<MutableBytes> receive(incoming.size());
    for (size_t peer = 0; peer < outgoing.size(); ++peer) {
      if (!outgoing[peer].empty()) send[peer] = bytes_of(outgoing[peer][field]);
      if (!incoming[peer].empty()) receive[peer] = bytes_of(incoming[peer][field]);
    }
    in_flight.push_back(comm.all_to_all(send, receive, tag + static_cast<int64_t>(field), op));
  }
  for (Work& work : in_flight) work.wait();
}

// Calls `use` with each line and its rows of the message.
template <typename Use>
void for_each_line(const std::vector<Range>& lines, const Tensors& message, const Use& use) {
  int64_t first_row = 0;
  for (const Range& line : lines) {
    Tensors rows;
    for (const at::Tensor& tensor : message) {
      rows.push_back(tensor.narrow(0, first_row, line.size()));
    }
    use(line, std::move(rows));
    first_row += line.size();
  }
}

}  // namespace

LineExchange::LineExchange(const TokenLayout& layout, int chunk,
                           const std::vector<std::vector<Range>>& wanted, int rank)
    : rank_(rank), incoming_(wanted.size()), outgoing_(wanted.size()) {
  LONGSPAN_CHECK(static_cast<int>(wanted.size()) == layout.num_ranks(), "wishes of ", wanted.size(),
                 " ranks, the layout has ", layout.num_ranks());
  for (size_t wisher = 0; wisher < wanted.size(); ++wisher) {
    for (const Range& line : wanted[wisher]) {
      for (const auto& [home, part] : layout.split_by_home(line)) {
        LONGSPAN_CHECK(home.chunk <= chunk, "rank ", wisher, " wants line rows ", part,
                       " in chunk ", chunk, ", but they lie in chunk ", home.chunk);
        if (wisher == index(rank)) incoming_[index(home.rank)].push_back(part);
        if (home.rank == rank) outgoing_[wisher].push_back(part);
      }
    }
  }
}

RowStore LineExchange::fetch(const RowStore& own, const std::vector<LineField>& fields,
                             Communicator& comm, int64_t tag, const std::string& op) const {
  const std::vector<Tensors> outgoing = packed(own, outgoing_, fields, rank_, op);
  const std::vector<Tensors> incoming = empty_messages(incoming_, fields, rank_);
  exchange(outgoing, incoming, fields.size(), comm, tag, op);
  RowStore all = own;
  for (size_t owner = 0; owner < incoming.size(); ++owner) {
    if (incoming[owner].empty()) continue;
    for_each_line(incoming_[owner], incoming[owner],
                  [&](const Range& line, Tensors rows) { all.add(line, std::move(rows)); });
  }
  return all;
}

void LineExchange::give_back(const RowStore& gradients, const std::vector<LineField>& fields,
                             RowAccumulator& own, Communicator& comm, int64_t tag,
                             const std::string& op) const {
  const std::vector<Tensors> outgoing = packed(gradients, incoming_, fields, rank_, op);
  const std::vector<Tensors> incoming = empty_messages(outgoing_, fields, rank_);
  exchange(outgoing, incoming, fields.size(), comm, tag, op);
  for (size_t wisher = 0; wisher < incoming.size(); ++wisher) {
    if (wisher == index(rank_)) {
      for (const Range& line : outgoing_[wisher]) own.add(line, gradients.rows(line));
    } else if (!incoming[wisher].empty()) {
      for_each_line(outgoing_[wisher], incoming[wisher],
                    [&](const Range& line, const Tensors& rows) { own.add(line, rows); });
    }
  }
}

}  // namespace longspan
