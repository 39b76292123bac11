#include "experts/expert_dispatch.h"

#include <algorithm>
#include <span>

#include "base/check.h"

namespace longspan {
namespace {

// Of places [begin, end) in a list dealt over `chunks`, those that fall to chunk `chunk`.
int64_t dealt(int64_t begin, int64_t end, int64_t chunk, int64_t chunks) {
  auto below = [&](int64_t bound) { return bound > chunk ? (bound - chunk - 1) / chunks + 1 : 0; };
  return below(end) - below(begin);
}

// Rows that fall to a chunk, by number of pairs; the list begins with the rows of most pairs.
std::vector<int64_t> dealt_rows(const std::vector<int64_t>& counts, int64_t chunk, int64_t chunks) {
  std::vector<int64_t> rows(counts.size());
  int64_t begin = 0;
  for (size_t m = counts.size(); m-- > 0;) {
    rows[m] = dealt(begin, begin + counts[m], chunk, chunks);
    begin += counts[m];
  }
  return rows;
}

int64_t pairs_of(const std::vector<int64_t>& rows) {
  int64_t pairs = 0;
  for (size_t m = 0; m < rows.size(); ++m) pairs += static_cast<int64_t>(m + 1) * rows[m];
  return pairs;
}

// By expert: a division for every pair would be most of the work.
std::vector<int32_t> ranks_of_experts(const ExpertGroupShape& shape) {
  std::vector<int32_t> ranks(static_cast<size_t>(shape.experts));
  for (int64_t expert = 0; expert < shape.experts; ++expert) {
    ranks[static_cast<size_t>(expert)] = static_cast<int32_t>(expert / shape.experts_per_rank());
  }
  return ranks;
}

void check_ids(const ExpertGroupShape& shape, const at::Tensor& ids) {
  LONGSPAN_CHECK(ids.is_cpu() && ids.scalar_type() == at::kInt && ids.is_contiguous() &&
                     ids.dim() == 2 && ids.size(1) == shape.top_k,
                 "expert ids ", ids.toString(), " ", ids.sizes(), ", ", shape.top_k, " a token");
  const int32_t* first = ids.const_data_ptr<int32_t>();
  for (int64_t token = 0; token < ids.size(0); ++token, first += shape.top_k) {
    for (const int32_t* id = first; id != first + shape.top_k; ++id) {
      LONGSPAN_CHECK(*id >= 0 && *id < shape.experts && std::find(first, id, *id) == id, "token ",
                     token, " names expert ", *id, " of ", shape.experts, " wrongly or twice");
    }
  }
}

}  // namespace

void check_expert_group(const ExpertGroupShape& shape) {
  LONGSPAN_CHECK(
      shape.ranks >= 1 && shape.experts >= 1 && shape.top_k >= 1 && shape.top_k <= shape.experts,
      shape.experts, " experts, ", shape.top_k, " a token, ", shape.ranks, " ranks");
  if (shape.experts % shape.ranks != 0) {
    throw UserError(text("layout.expert_group = ", shape.ranks, " does not divide the ",
                         shape.experts, " experts of a layer; choose a divisor of ",
                         shape.experts));
  }
  const int64_t least = shape.ranks * shape.pairs_per_row_max();
  if (shape.max_pairs_per_chunk < least) {
    throw UserError(text("layout.expert_chunk_pairs = ", shape.max_pairs_per_chunk,
                         ", but one token from each of ", shape.ranks,
                         " ranks of an expert group may need ", least, "; set at least that"));
  }
}

ExpertDispatch::ExpertDispatch(const ExpertGroupShape& shape, const at::Tensor& ids_TK,
                               Communicator* group, const std::string& op)
    : shape_(shape), ids_TK_(ids_TK), rank_(group != nullptr ? group->rank() : 0) {
  check_expert_group(shape);
  LONGSPAN_CHECK(shape.ranks == (group != nullptr ? group->size() : 1), op, ": experts over ",
                 shape.ranks, " ranks, a group of another size");
  check_ids(shape, ids_TK);
  const std::vector<std::vector<int64_t>> order = order_rows();
  gather_counts(group, op);
  choose_chunks();
  deal(order);
}

const OutgoingRows& ExpertDispatch::outgoing(int64_t chunk, int64_t to_rank) const {
  return outgoing_[static_cast<size_t>(chunk * shape_.ranks + to_rank)];
}

std::vector<int64_t> ExpertDispatch::incoming(int64_t chunk, int64_t from_rank) const {
  return dealt_rows(counts_of(from_rank, rank_), chunk, chunks_);
}

ExpertDispatch::Counts ExpertDispatch::counts_of(int64_t from_rank, int64_t to_rank) const {
  const int64_t widths = shape_.pairs_per_row_max();
  const auto first = counts_.begin() + (from_rank * shape_.ranks + to_rank) * widths;
  return {first, first + widths};
}

// For every rank this rank's tokens that go there, in the order of their rows; fills this rank's
// part of the counts.
std::vector<std::vector<int64_t>> ExpertDispatch::order_rows() {
  const int64_t ranks = shape_.ranks;
  const int64_t widths = shape_.pairs_per_row_max();
  counts_.assign(static_cast<size_t>(ranks * ranks * widths), 0);
  std::vector<std::vector<int64_t>> by_width(static_cast<size_t>(ranks * widths));
  std::vector<int64_t> pairs(static_cast<size_t>(ranks));
  const std::vector<int32_t> rank_of = ranks_of_experts(shape_);
  const int32_t* ids = ids_TK_.const_data_ptr<int32_t>();
  for (int64_t token = 0; token < tokens(); ++token) {
    std::fill(pairs.begin(), pairs.end(), 0);
    for (const int32_t id :
         std::span(ids + token * shape_.top_k, static_cast<size_t>(shape_.top_k))) {
      ++pairs[static_cast<size_t>(rank_of[static_cast<size_t>(id)])];
    }
    for (int64_t to = 0; to < ranks; ++to) {
      const int64_t width = pairs[static_cast<size_t>(to)];
      if (width > 0) by_width[static_cast<size_t>(to * widths + width - 1)].push_back(token);
    }
  }
  std::vector<std::vector<int64_t>> order(static_cast<size_t>(ranks));
  for (int64_t to = 0; to < ranks; ++to) {
    for (int64_t width = widths; width >= 1; --width) {
      const auto& rows = by_width[static_cast<size_t>(to * widths + width - 1)];
      auto& all = order[static_cast<size_t>(to)];
      all.insert(all.end(), rows.begin(), rows.end());
      counts_[static_cast<size_t>((rank_ * ranks + to) * widths + width - 1)] = std::ssize(rows);
    }
  }
  return order;
}

void ExpertDispatch::gather_counts(Communicator* group, const std::string& op) {
  if (group == nullptr) return;
  const auto block = static_cast<size_t>(shape_.ranks * shape_.pairs_per_row_max());
  const auto own = std::span(counts_).subspan(static_cast<size_t>(rank_) * block, block);
  group->all_gather(std::as_bytes(own), std::as_writable_bytes(std::span(counts_)), op);
}

// The first chunk gets the first card of every deal: no other holds more.
int64_t ExpertDispatch::busiest_pairs(int64_t chunks) const {
  std::vector<int64_t> sent(static_cast<size_t>(shape_.ranks));
  std::vector<int64_t> received(static_cast<size_t>(shape_.ranks));
  for (int64_t from = 0; from < shape_.ranks; ++from) {
    for (int64_t to = 0; to < shape_.ranks; ++to) {
      const int64_t pairs = pairs_of(dealt_rows(counts_of(from, to), 0, chunks));
      sent[static_cast<size_t>(from)] += pairs;
      received[static_cast<size_t>(to)] += pairs;
    }
  }
  return std::max(*std::max_element(sent.begin(), sent.end()),
                  *std::max_element(received.begin(), received.end()));
}

// The fewest chunks within the bound. More chunks never make the busiest one larger, and with one
// row of every pair of ranks a chunk is within the bound (check_expert_group).
void ExpertDispatch::choose_chunks() {
  int64_t enough = 1;
  while (busiest_pairs(enough) > shape_.max_pairs_per_chunk) enough *= 2;
  int64_t too_few = enough / 2;
  while (enough - too_few > 1) {
    const int64_t middle = (enough + too_few) / 2;
    (busiest_pairs(middle) > shape_.max_pairs_per_chunk ? too_few : enough) = middle;
  }
  chunks_ = enough;
  pairs_per_chunk_ = busiest_pairs(enough);
}

void ExpertDispatch::reserve(int64_t to_rank, int64_t rows) {
  const auto in_chunk = static_cast<size_t>((rows + chunks_ - 1) / chunks_);
  for (int64_t chunk = 0; chunk < chunks_; ++chunk) {
    OutgoingRows& of = outgoing_[static_cast<size_t>(chunk * shape_.ranks + to_rank)];
    of.tokens.reserve(in_chunk);
    of.places.reserve(in_chunk * static_cast<size_t>(shape_.pairs_per_row_max()));
  }
}

void ExpertDispatch::deal(const std::vector<std::vector<int64_t>>& order) {
  outgoing_.resize(static_cast<size_t>(chunks_ * shape_.ranks));
  const std::vector<int32_t> rank_of = ranks_of_experts(shape_);
  const int32_t* ids = ids_TK_.const_data_ptr<int32_t>();
  for (int64_t to = 0; to < shape_.ranks; ++to) {
    const auto& all = order[static_cast<size_t>(to)];
    reserve(to, std::ssize(all));
    for (int64_t row = 0; row < std::ssize(all); ++row) {
      OutgoingRows& rows = outgoing_[static_cast<size_t>(row % chunks_ * shape_.ranks + to)];
      const int64_t token = all[static_cast<size_t>(row)];
      rows.tokens.push_back(token);
      for (int64_t place = token * shape_.top_k; place < (token + 1) * shape_.top_k; ++place) {
        if (rank_of[static_cast<size_t>(ids[place])] == to) rows.places.push_back(place);
      }
    }
  }
}

}  // namespace longspan
