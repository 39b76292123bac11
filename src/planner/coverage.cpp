#include "planner/coverage.h"

#include <map>
#include <set>
#include <string>
#include <utility>

#include "base/error.h"

namespace longspan {
namespace {

// A task with the keys that its last query sees. Two such rectangles share a visible pair exactly
// if they overlap: the last common key is then at most the last common query.
struct Tile {
  Range queries;
  Range keys;
  size_t server = 0;

  std::string describe() const {
    return text("queries ", queries, " x keys ", keys, " on server ", server);
  }
};

// Keys in use at the current query of the sweep, by their begin; they are disjoint.
class ActiveKeys {
 public:
  void add(int32_t document, const Tile& tile) {
    const auto next = by_begin_.lower_bound(tile.keys.begin);
    if (next != by_begin_.end() && next->second->keys.begin < tile.keys.end) {
      fail(document, *next->second, tile);
    }
    if (next != by_begin_.begin() && std::prev(next)->second->keys.end > tile.keys.begin) {
      fail(document, *std::prev(next)->second, tile);
    }
    by_begin_.emplace(tile.keys.begin, &tile);
    by_end_of_queries_.emplace(tile.queries.end, tile.keys.begin);
  }

  void drop_finished(int64_t query) {
    while (!by_end_of_queries_.empty() && by_end_of_queries_.begin()->first <= query) {
      by_begin_.erase(by_end_of_queries_.begin()->second);
      by_end_of_queries_.erase(by_end_of_queries_.begin());
    }
  }

 private:
  [[noreturn]] static void fail(int32_t document, const Tile& a, const Tile& b) {
    throw InternalError(text("document ", document, ": pairs of queries ",
                             intersect(a.queries, b.queries), " and keys ",
                             intersect(a.keys, b.keys), " are covered twice, by ", a.describe(),
                             " and by ", b.describe()));
  }

  std::map<int64_t, const Tile*> by_begin_;
  std::set<std::pair<int64_t, int64_t>> by_end_of_queries_;  // (queries.end, keys.begin)
};

// Finds the first uncovered pair of a document whose tiles are disjoint but too few. Quadratic;
// only on the way to an error.
[[noreturn]] void fail_with_gap(int32_t document, const Range& queries,
                                const std::vector<Tile>& tiles) {
  std::set<int64_t> cuts = {queries.begin, queries.end};
  for (const Tile& tile : tiles) cuts.insert({tile.queries.begin, tile.queries.end});
  for (auto cut = cuts.begin(); std::next(cut) != cuts.end(); ++cut) {
    const Range rows{*cut, *std::next(cut)};
    std::vector<Range> keys;
    for (const Tile& tile : tiles) {
      if (tile.queries.contains(rows)) keys.push_back(tile.keys);
    }
    const auto missing = subtract({{0, rows.end}}, normalize(std::move(keys)));
    if (!missing.empty()) {
      const Range blind{std::max(rows.begin, missing.front().begin), rows.end};
      throw InternalError(text("document ", document, ": no task covers queries ", blind,
                               " x keys ", missing.front()));
    }
  }
  throw InternalError(
      text("document ", document, ": the tasks do not cover the pairs of queries ", queries));
}

void verify_document(int32_t document, const Range& queries, const std::vector<Tile>& tiles) {
  ActiveKeys active;
  int64_t pairs = 0;
  for (const Tile& tile : tiles) {
    active.drop_finished(tile.queries.begin);
    active.add(document, tile);
    pairs += visible_pairs(tile.queries, tile.keys);
  }
  if (pairs != visible_pairs(queries, {0, queries.end})) fail_with_gap(document, queries, tiles);
}

}  // namespace

void verify_coverage(const TokenLayout& layout, const AttentionPlan& plan) {
  std::map<int32_t, std::vector<Tile>> tiles_of;
  for (size_t server = 0; server < plan.servers.size(); ++server) {
    for (const AttentionTask& task : plan.servers[server].tasks) {
      const Range seen{task.keys.begin, std::min(task.keys.end, task.queries.end)};
      tiles_of[task.document].push_back({task.queries, seen, server});
    }
  }
  for (const DocumentPart& part : layout.document_parts(layout.chunk(plan.chunk))) {
    std::vector<Tile>& tiles = tiles_of[part.document];
    std::sort(tiles.begin(), tiles.end(), [](const Tile& a, const Tile& b) {
      return std::pair(a.queries.begin, a.keys.begin) < std::pair(b.queries.begin, b.keys.begin);
    });
    verify_document(part.document, part.positions, tiles);
  }
}

}  // namespace longspan
