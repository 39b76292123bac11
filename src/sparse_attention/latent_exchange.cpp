#include "sparse_attention/latent_exchange.h"

#include <ATen/ops/zeros.h>

#include <array>

#include "base/check.h"
#include "device/device.h"
#include "sparse_attention/gpu_sparse_attention.h"

namespace longspan {
namespace {

// A range of the line travels as its two ends.
using Wish = std::array<int64_t, 2>;

ConstBytes bytes_of(const std::vector<Wish>& wishes) {
  return std::as_bytes(std::span(wishes));
}

std::vector<Range> own_lines(const TokenLayout& layout, int chunk, int rank) {
  return normalize(layout.pieces_before(chunk + 1, rank));
}

// By pool of the axis in `pools`: whether a query of the piece selected it. Host memory.
at::Tensor selected_flags(const TokenLayout& layout, const PoolAxis& axis, const Range& piece,
                          const at::Tensor& pools_TB, const Range& pools) {
  if constexpr (kBuiltWithCuda) {
    if (pools_TB.is_cuda()) return gpu_selected_flags(layout, axis, piece, pools_TB, pools);
  }
  const at::Tensor flags = at::zeros({pools.size()}, at::kByte);
  uint8_t* selected = flags.mutable_data_ptr<uint8_t>();
  const int32_t* rows = pools_TB.const_data_ptr<int32_t>();
  const int64_t width = pools_TB.size(1);
  for (const DocumentPart& part : layout.document_parts(piece)) {
    const int64_t first_pool = axis.first_pool(part.document) - pools.begin;
    for (int64_t row = part.line.begin - piece.begin; row < part.line.end - piece.begin; ++row) {
      for (int64_t idx = row * width; idx < (row + 1) * width && rows[idx] >= 0; ++idx) {
        selected[first_pool + rows[idx]] = 1;
      }
    }
  }
  return flags;
}

}  // namespace

LatentExchange::LatentExchange(const TokenLayout& layout, const PoolAxis& axis, int chunk,
                               LineField field, Communicator& comm, int64_t tag, std::string op)
    : layout_(layout),
      axis_(axis),
      chunk_(chunk),
      field_(std::move(field)),
      sum_field_{
          field_.row_shape,
          field_.options.dtype(accumulate_type(at::typeMetaToScalarType(field_.options.dtype())))},
      comm_(comm),
      tag_(tag),
      op_(std::move(op)) {}

// All rows from the start of the document of the first query to the last query.
std::vector<Range> LatentExchange::gathered_lines(int rank) const {
  const Range piece = layout_.piece(chunk_, rank);
  if (piece.empty()) return {};
  const int64_t begin = layout_.document(layout_.document_at(piece.begin)).begin;
  return subtract({{begin, piece.end}}, own_lines(layout_, chunk_, rank));
}

std::vector<Range> LatentExchange::selected_lines(const at::Tensor& pools_TB) const {
  const Range piece = layout_.piece(chunk_, comm_.rank());
  if (piece.empty()) return {};
  const Range pools{axis_.first_pool(layout_.document_at(piece.begin)), axis_.pools(piece).end};
  const at::Tensor flags = selected_flags(layout_, axis_, piece, pools_TB, pools);
  const uint8_t* selected = flags.const_data_ptr<uint8_t>();
  std::vector<Range> lines;
  for (const DocumentPart& part : layout_.document_parts(piece)) {
    const int64_t first_pool = axis_.first_pool(part.document);
    for (int64_t pool = 0; pool < part.positions.end / axis_.pool_tokens(); ++pool) {
      if (selected[first_pool + pool - pools.begin] == 0) continue;
      lines.push_back(axis_.rows(part.document, {pool, pool + 1}));
    }
    // Tails of the first queries.
    const int64_t tail = part.positions.begin / axis_.pool_tokens() * axis_.pool_tokens();
    lines.push_back(layout_.to_line(part.document, {tail, part.positions.end}));
  }
  return subtract(normalize(std::move(lines)), own_lines(layout_, chunk_, comm_.rank()));
}

LatentTravel LatentExchange::choose(const at::Tensor& pools_TB, LatentTravel travel) const {
  if (travel != LatentTravel::kAuto) return travel;
  int64_t gathered = 0;
  for (int rank = 0; rank < comm_.size(); ++rank) gathered += total_size(gathered_lines(rank));
  if (gathered == 0) return LatentTravel::kGather;
  const std::vector<Range> lines = selected_lines(pools_TB);
  auto row_bytes = static_cast<int64_t>(field_.options.dtype().itemsize());
  for (const int64_t extent : field_.row_shape) row_bytes *= extent;
  std::vector<double> fetched_bytes = {static_cast<double>(total_size(lines) * row_bytes) +
                                       static_cast<double>(lines.size() * sizeof(Wish))};
  comm_.all_reduce_sum(fetched_bytes, op_ + ", bytes");
  return fetched_bytes[0] < static_cast<double>(gathered * row_bytes) ? LatentTravel::kFetch
                                                                      : LatentTravel::kGather;
}

// Tells every owner what this rank wants of it. Of other ranks only what they want of this one is
// known here, and that is all that an exchange of lines needs.
std::vector<std::vector<Range>> LatentExchange::exchange_wishes(
    const std::vector<Range>& mine) const {
  const auto ranks = static_cast<size_t>(comm_.size());
  std::vector<std::vector<Wish>> asked(ranks);
  for (const Range& line : mine) {
    for (const auto& [home, part] : layout_.split_by_home(line)) {
      asked[static_cast<size_t>(home.rank)].push_back({part.begin, part.end});
    }
  }
  std::vector<int64_t> counts;
  for (const std::vector<Wish>& wishes : asked) counts.push_back(std::ssize(wishes));
  std::vector<int64_t> all_counts(ranks * ranks);
  comm_.all_gather(std::as_bytes(std::span(counts)), std::as_writable_bytes(std::span(all_counts)),
                   op_ + ", counts");
  std::vector<std::vector<Wish>> wished(ranks);
  std::vector<ConstBytes> send;
  std::vector<MutableBytes> receive;
  for (size_t rank = 0; rank < ranks; ++rank) {
    const auto self = static_cast<size_t>(comm_.rank());
    wished[rank].resize(static_cast<size_t>(all_counts[rank * ranks + self]));
    send.push_back(bytes_of(asked[rank]));
    receive.push_back(std::as_writable_bytes(std::span(wished[rank])));
  }
  comm_.all_to_all(send, receive, tag_, op_ + ", wishes").wait();
  std::vector<std::vector<Range>> wanted(ranks);
  for (size_t rank = 0; rank < ranks; ++rank) {
    for (const Wish& wish : wished[rank]) wanted[rank].push_back({wish[0], wish[1]});
  }
  wanted[static_cast<size_t>(comm_.rank())] = mine;
  return wanted;
}

RowStore LatentExchange::receive(LatentTravel travel, const at::Tensor& pools_TB,
                                 const RowStore& own) {
  LONGSPAN_CHECK(travel != LatentTravel::kAuto, op_, ": the way of travel was not chosen");
  std::vector<std::vector<Range>> wanted;
  if (travel == LatentTravel::kFetch) {
    wanted = exchange_wishes(selected_lines(pools_TB));
  } else {
    for (int rank = 0; rank < comm_.size(); ++rank) wanted.push_back(gathered_lines(rank));
  }
  received_ = wanted[static_cast<size_t>(comm_.rank())];
  lines_ = std::make_unique<LineExchange>(layout_, chunk_, wanted, comm_.rank());
  return lines_->fetch(own, {field_}, comm_, tag_ + 1, op_);
}

RowStore LatentExchange::zero_gradients(const RowStore& own_sums) const {
  RowStore sums = own_sums;
  std::vector<int64_t> sizes = {total_size(received_)};
  sizes.insert(sizes.end(), sum_field_.row_shape.begin(), sum_field_.row_shape.end());
  const at::Tensor zeros = at::zeros(sizes, sum_field_.options);
  int64_t first_row = 0;
  for (const Range& line : received_) {
    sums.add(line, {zeros.narrow(0, first_row, line.size())});
    first_row += line.size();
  }
  return sums;
}

void LatentExchange::give_back(const RowStore& sums, const RowStore& own_sums) const {
  RowAccumulator own(own_sums);
  lines_->give_back(sums, {sum_field_}, own, comm_, tag_ + 2, op_ + ", gradients");
}

}  // namespace longspan
