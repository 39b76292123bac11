// A plan under construction: which server computes which shard of a chunk's queries.
//
// A *shard* is a stretch of one document's queries inside one home piece, with all keys that they
// see. The draft keeps each server's load and what a move of queries would add to the rows on the
// wire, so that passes (balanced_planner.h) read as what they decide.
//
//   PlanDraft draft(layout, chunk, speeds);      // every shard at home
//   draft.move({.source = 0, .shard = 3, .cut = 1280, .destination = 2});
//
// One thread.
#pragma once

#include <vector>

#include "planner/attention_plan.h"

namespace longspan {

struct Shard {
  int32_t document = 0;
  Range queries;  // document positions
  size_t home = 0;

  int64_t charged_pairs() const { return charged_pairs_from(queries.begin); }
  // Of the queries from `cut` on.
  int64_t charged_pairs_from(int64_t cut) const;
};

// Gives the shard's queries from `cut` on to another server; all of them if cut is their begin.
struct Move {
  size_t source = 0;
  size_t shard = 0;
  int64_t cut = 0;
  size_t destination = 0;
};

class PlanDraft {
 public:
  PlanDraft(const TokenLayout& layout, int chunk, std::vector<double> speed);

  size_t num_servers() const { return speed_.size(); }
  double speed(size_t server) const { return speed_[server]; }
  const std::vector<Shard>& shards(size_t server) const { return shards_[server]; }
  // Charged pairs on the server.
  int64_t load(size_t server) const { return load_[server]; }
  // The load of a server of speed 1 if all were equally busy. Cuts change it a little where they
  // are not multiples of a tile from a shard's first query.
  double level() const { return static_cast<double>(total_load_) / total_speed_; }

  // Key rows that the server would fetch for the keys of this shard beyond those it fetches or has.
  int64_t new_key_rows(const Shard& shard, size_t server) const;
  void move(const Move& move);

 private:
  int64_t& key_reach(size_t server, int32_t document);
  void add(size_t server, const Shard& shard);
  void add_load(size_t server, int64_t charged_pairs);
  void forget_keys(size_t server, int32_t document);

  const TokenLayout& layout_;
  int chunk_;
  std::vector<double> speed_;
  std::vector<std::vector<Shard>> shards_;
  std::vector<int64_t> load_;
  int64_t total_load_ = 0;
  double total_speed_ = 0;
  int32_t first_document_ = 0;
  // [server][document]: the keys [0, reach) of the document are in use there.
  std::vector<std::vector<int64_t>> key_reach_;
};

}  // namespace longspan
