// Rows of one home that several ranks take: where one copy can serve them all.
//
// The takers of a home's rows seldom want the same stretch: of a long document each wants the keys
// up to its own queries. Cut at every begin and end, the home's rows fall into stretches whose
// takers are the same for every row:
//
//   takers 3, 5 want [0, 900), taker 8 wants [0, 400)   ->   [0, 400): 3 5 8,   [400, 900): 3 5
//
//   SharedRows shared;
//   shared.split(transfers_of_one_home_and_kind, least_rows);
//   for (const SharedStretch& stretch : shared.stretches()) use(stretch, shared.takers(stretch));
//
// Values; one thread.
#pragma once

#include <span>
#include <vector>

#include "planner/attention_plan.h"

namespace longspan {

struct SharedStretch {
  int home = 0;
  RowKind kind = RowKind::kQuery;
  Range line;
  size_t first_taker = 0;
  size_t num_takers = 0;
};

class SharedRows {
 public:
  // Forgets all stretches, but keeps their memory.
  void clear() {
    stretches_.clear();
    takers_.clear();
  }

  // `transfers`: of one source and kind, round 0, by rising destination. Stretches with several
  // takers and at least `least_rows` rows are added to the list; what else the transfers carry is
  // appended to `rest`, transfers that share no row with others first, in their order.
  void split(std::span<const Transfer> transfers, int64_t least_rows, std::vector<Transfer>* rest);

  const std::vector<SharedStretch>& stretches() const { return stretches_; }
  // Ascending.
  std::span<const int> takers(const SharedStretch& stretch) const {
    return {takers_.data() + stretch.first_taker, stretch.num_takers};
  }

 private:
  struct End {
    int64_t at = 0;
    int taker = 0;
  };

  // One of the transfers to split.
  struct Wanted {
    Range line;
    size_t transfer = 0;
  };

  void sweep(std::span<const Transfer> transfers, std::span<const Wanted> cluster,
             int64_t least_rows);
  void add(const Transfer& like, const Range& line, int64_t least_rows);

  std::vector<SharedStretch> stretches_;
  std::vector<int> takers_;
  // Reused for every home.
  std::vector<Wanted> by_begin_;
  std::vector<char> is_alone_;    // of each transfer
  std::vector<Transfer> pieces_;  // what clusters leave to single takers
  std::vector<End> ends_;         // of a cluster
  std::vector<int> active_;
};

}  // namespace longspan
