#include "baselines/published_greedy.h"

#include <algorithm>
#include <numeric>
#include <optional>

namespace longspan {
namespace {

// Rows [begin, end) of a document's first half and their mirror images.
struct Item {
  int32_t document = 0;
  Range rows;
  int64_t tokens = 0;  // of the document
  size_t server = 0;

  Range head() const { return rows; }
  Range tail() const {
    return {std::max(tokens - rows.end, (tokens + 1) / 2), tokens - rows.begin};
  }
  int64_t num_tokens() const { return rows.size() + std::max<int64_t>(0, tail().size()); }
  int64_t pairs() const {
    const Range front = head();
    const Range back = tail();
    return visible_pairs(front, {0, front.end}) + visible_pairs(back, {0, back.end});
  }
};

class Scheduler {
 public:
  Scheduler(const BaselineInput& input, const PublishedOptions& options)
      : layout_(input.layout),
        options_(options),
        load_(static_cast<size_t>(input.layout.num_ranks()), 0),
        items_of_(load_.size()) {}

  // Documents in order; each rank takes its number of tokens, to within one, from the outside in.
  void lay_out(Baseline* baseline) {
    size_t rank = 0;
    int64_t room = layout_.piece(0, 0).size();
    for (int32_t document = 0; document < layout_.num_documents(); ++document) {
      const int64_t tokens = layout_.document_tokens(document);
      const int64_t half = (tokens + 1) / 2;
      for (int64_t row = 0; row < half;) {
        while (room <= 0 && rank + 1 < load_.size()) {
          ++rank;
          room += layout_.piece(0, static_cast<int>(rank)).size();
        }
        const bool takes_all = rank + 1 == load_.size();
        const int64_t end = takes_all ? half : std::min(half, row + (room + 1) / 2);
        Item item{document, {row, end}, tokens, rank};
        room -= item.num_tokens();
        for (const Range& part : {item.head(), item.tail()}) {
          if (part.empty()) continue;
          baseline->homes.push_back({layout_.to_line(document, part), static_cast<int>(rank)});
        }
        add(item);
        row = end;
      }
    }
  }

  void balance() {
    mean_ = static_cast<double>(std::accumulate(load_.begin(), load_.end(), int64_t{0})) /
            static_cast<double>(load_.size());
    std::vector<size_t> deficits;
    for (size_t server = 0; server < load_.size(); ++server) {
      if (deficit(server) > 0) deficits.push_back(server);
    }
    std::stable_sort(deficits.begin(), deficits.end(),
                     [&](size_t a, size_t b) { return deficit(a) > deficit(b); });
    for (const size_t server : deficits) {
      while (deficit(server) > options_.epsilon * mean_) {
        const std::optional<Move> move = best_move(server);
        if (!move) break;
        carry_out(*move, server);
      }
    }
  }

  void write_tasks(Baseline* baseline) {
    std::vector<std::pair<DocumentPart, int>> parts;
    for (const Item& item : items_) {
      for (const Range& positions : {item.head(), item.tail()}) {
        if (positions.empty()) continue;
        const Range line = layout_.to_line(item.document, positions);
        parts.push_back({{item.document, positions, line}, static_cast<int>(item.server)});
      }
    }
    std::sort(parts.begin(), parts.end(),
              [](const auto& a, const auto& b) { return a.first.line.begin < b.first.line.begin; });
    for (const auto& [part, server] : parts) add_task(part, server, baseline);
  }

 private:
  struct Move {
    size_t item = 0;
    int64_t rows = 0;  // a side
  };

  double deficit(size_t server) const { return mean_ - static_cast<double>(load_[server]); }

  void add(const Item& item) {
    load_[item.server] += item.pairs();
    items_of_[item.server].push_back(items_.size());
    items_.push_back(item);
  }

  std::optional<Move> best_move(size_t receiver) const {
    std::optional<Move> best;
    double best_score = 0;
    for (size_t donor = 0; donor < load_.size(); ++donor) {
      const double surplus = -deficit(donor);
      if (surplus <= 0) continue;
      const double most = std::min(surplus, deficit(receiver));
      for (const size_t idx : items_of_[donor]) {
        const Item& item = items_[idx];
        const auto pairs = static_cast<double>(item.pairs());
        const auto length = static_cast<double>(item.tokens);
        const int64_t rows =
            pairs <= most ? item.rows.size()
                          : std::min(item.rows.size(), static_cast<int64_t>(most / (length + 1)));
        if (rows == 0) continue;
        const double bytes =
            static_cast<double>(rows) * options_.query_bytes + length * options_.key_bytes;
        const double score = std::min(pairs, most) / bytes;
        if (score <= best_score) continue;
        best_score = score;
        best = Move{idx, rows};
      }
    }
    return best;
  }

  void carry_out(const Move& move, size_t receiver) {
    Item& item = items_[move.item];
    const size_t donor = item.server;
    if (move.rows == item.rows.size()) {
      const int64_t pairs = item.pairs();
      std::erase(items_of_[donor], move.item);
      load_[donor] -= pairs;
      load_[receiver] += pairs;
      item.server = receiver;
      items_of_[receiver].push_back(move.item);
      return;
    }
    Item inner = item;
    inner.rows.begin = item.rows.end - move.rows;
    inner.server = receiver;
    load_[donor] -= inner.pairs();
    item.rows.end = inner.rows.begin;
    add(inner);
  }

  const TokenLayout& layout_;
  const PublishedOptions options_;
  std::vector<Item> items_;
  std::vector<int64_t> load_;  // pairs
  std::vector<std::vector<size_t>> items_of_;
  double mean_ = 0;
};

}  // namespace

Baseline published_greedy(const BaselineInput& input, const PublishedOptions& options) {
  Baseline baseline = begin_baseline(input, BaselineExchange::kNeeded);
  baseline.keys_stored_per_task = true;
  Scheduler scheduler(input, options);
  scheduler.lay_out(&baseline);
  scheduler.balance();
  scheduler.write_tasks(&baseline);
  finish_baseline(input.layout, &baseline);
  return baseline;
}

}  // namespace longspan
