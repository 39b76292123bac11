#include "planner/pass_bands.h"

#include <algorithm>
#include <utility>

#include "planner/block_search.h"

namespace longspan {
namespace {

// A grid must save at least this share of the bytes to be worth its partial results.
constexpr double kLeastSaving = 0.2;

// A document's part in the chunk, and the ranks that hold its keys.
struct WideDocument {
  int32_t document = 0;
  Range queries;  // document positions
  int first = 0;  // ranks [first, last] hold its keys
  int last = 0;
  size_t num_servers = 0;  // among them

  std::vector<int> servers(const TileDraft& draft) const {
    std::vector<int> ranks;
    for (int rank = first; rank <= last; ++rank) {
      if (draft.is_server(rank)) ranks.push_back(rank);
    }
    return ranks;
  }
};

// Parts of a member's work: all its queries x one range of keys.
using KeyRanges = std::vector<Range>;

// Those with tiles on several ranks, or keys in earlier chunks. Only the first tile of a rank can
// be of a document that begins elsewhere.
std::vector<WideDocument> wide_documents(const TileDraft& draft) {
  const TokenLayout& layout = draft.layout();
  const Range chunk = layout.chunk(draft.chunk());
  std::vector<WideDocument> found;
  const auto add = [&](size_t first_tile, size_t last_tile) {
    const Tile& first = draft.tile(first_tile);
    const Tile& last = draft.tile(last_tile);
    // Only a chunk's first document has keys in earlier ones.
    const bool has_past = first_tile == 0 && layout.document(first.document).begin < chunk.begin;
    if (first_tile == last_tile && !has_past) return;
    WideDocument wide{first.document, {first.queries.begin, last.queries.end}};
    wide.first = has_past ? 0 : first.home;
    wide.last = has_past ? draft.num_ranks() - 1 : last.home;
    for (int rank = wide.first; rank <= wide.last; ++rank) {
      if (draft.is_server(rank)) ++wide.num_servers;
    }
    if (wide.num_servers > 1) found.push_back(wide);
  };
  size_t first_tile = 0;
  size_t last_tile = 0;
  for (int rank = 0; rank < draft.num_ranks(); ++rank) {
    const IndexRange own = draft.first_tiles(rank);
    if (own.begin == own.end) continue;
    if (draft.tile(own.begin).document != draft.tile(first_tile).document) {
      add(first_tile, last_tile);
      first_tile = own.begin;
    }
    last_tile = own.begin;
    if (own.end - own.begin == 1) continue;
    add(first_tile, last_tile);
    first_tile = last_tile = own.end - 1;
  }
  if (!draft.tiles().empty()) add(first_tile, last_tile);
  return found;
}

// Bytes that a rank receives and returns in a grid of `bands`.
double rank_bytes(const TileDraft& draft, const WideDocument& wide, size_t bands) {
  const RowBytes& bytes = draft.pass_costs().bytes;
  const auto ranks = static_cast<double>(wide.num_servers);
  const auto count = static_cast<double>(bands);
  const auto queries = static_cast<double>(wide.queries.size());
  const auto keys = static_cast<double>(wide.queries.end);
  const double foreign_keys = keys / count - keys / ranks;
  const double key_bytes = bytes.key_out + bytes.key_back_partial;
  if (bands == 1) return foreign_keys * key_bytes;
  const double foreign_queries = queries * count / ranks - queries / ranks;
  return foreign_keys * key_bytes + foreign_queries * (bytes.query_out + bytes.query_back_partial);
}

size_t best_bands(const TileDraft& draft, const WideDocument& wide) {
  size_t best = 1;
  double best_bytes = rank_bytes(draft, wide, 1) * (1 - kLeastSaving);
  for (size_t bands = 2; bands <= wide.num_servers; ++bands) {
    if (wide.num_servers % bands != 0) continue;
    const double bytes = rank_bytes(draft, wide, bands);
    if (bytes >= best_bytes) continue;
    best_bytes = bytes;
    best = bands;
  }
  return best;
}

// The document's keys [0, queries.end) that live on the ranks [first, last], document positions.
KeyRanges keys_of(const TileDraft& draft, const WideDocument& wide, int first, int last) {
  const TokenLayout& layout = draft.layout();
  const Range document = layout.document(wide.document);
  const Range line{document.begin, document.begin + wide.queries.end};
  KeyRanges keys;
  for (int chunk = 0; chunk <= draft.chunk(); ++chunk) {
    const Range pieces{layout.piece(chunk, first).begin, layout.piece(chunk, last).end};
    const Range part = intersect(pieces, line);
    if (!part.empty()) keys.push_back(shift(part, -document.begin));
  }
  return normalize(std::move(keys));
}

double band_cost_s(const TileDraft& draft, const Range& queries, const KeyRanges& keys) {
  double cost = 0;
  for (const Range& range : keys) cost += draft.cost_s(queries, visible_keys(range, queries.end));
  return cost;
}

// The border in `queries` at which [queries.begin, border) costs about the target.
int64_t query_border(const TileDraft& draft, const Range& queries, const KeyRanges& keys,
                     double target_s) {
  const int64_t low = queries.begin / kBlockTokens + 1;
  const int64_t high = std::max(low, (queries.end - 1) / kBlockTokens);
  const int64_t block = first_block(low, high, (low + high) / 2, [&](int64_t probe) {
    return band_cost_s(draft, {queries.begin, probe * kBlockTokens}, keys) >= target_s;
  });
  return std::min(block * kBlockTokens, queries.end);
}

// Tiles of one member: its queries, cut at their homes, with each range of the band's keys.
void add_member_tiles(const TileDraft& draft, const WideDocument& wide, const Range& queries,
                      const KeyRanges& keys, int server, std::vector<Tile>* tiles) {
  const TokenLayout& layout = draft.layout();
  const Range line = layout.to_line(wide.document, queries);
  const int64_t document_begin = layout.document(wide.document).begin;
  for (const auto& [home, part] : layout.split_by_home(line)) {
    const Range positions = shift(part, -document_begin);
    for (const Range& range : keys) {
      const Range seen = visible_keys(range, positions.end);
      if (seen.empty()) continue;
      tiles->push_back({wide.document, home.rank, server, positions, seen, 0});
    }
  }
}

std::vector<Tile> banded_tiles(const TileDraft& draft, const WideDocument& wide, size_t bands) {
  std::vector<Tile> tiles;
  const std::vector<int> servers = wide.servers(draft);
  const size_t members = servers.size() / bands;
  for (size_t band = 0; band < bands; ++band) {
    // Ranks between two bands that are no servers hold keys as well: the band before has them.
    const bool first_band = band == 0;
    const bool last_band = band + 1 == bands;
    const int first = first_band ? 0 : servers[band * members];
    const int last = last_band ? draft.num_ranks() - 1 : servers[(band + 1) * members] - 1;
    const KeyRanges keys = keys_of(draft, wide, first, last);
    Range rest = wide.queries;
    for (size_t member = 0; member < members && !keys.empty(); ++member) {
      Range queries = rest;
      if (member + 1 < members) {
        const double share = band_cost_s(draft, rest, keys) / static_cast<double>(members - member);
        queries.end = query_border(draft, rest, keys, share);
      }
      rest.begin = queries.end;
      add_member_tiles(draft, wide, queries, keys, servers[band * members + member], &tiles);
      if (rest.empty()) break;
    }
  }
  return tiles;
}

}  // namespace

bool place_in_bands(TileDraft* draft) {
  bool changed = false;
  for (const WideDocument& wide : wide_documents(*draft)) {
    const size_t bands = best_bands(*draft, wide);
    if (bands == 1) continue;
    draft->replace_document(wide.document, banded_tiles(*draft, wide, bands));
    changed = true;
  }
  return changed;
}

}  // namespace longspan
