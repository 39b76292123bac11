// Which parts of a genome are held out for evaluation.
//
// Records are named ("chr22"), matched by shell globs ("chr2*", "chrUn_?"), or cut by the lines of
// a BED file (record, begin, end; 0-based, half-open; further columns are not read). Training and
// evaluation use the same HoldOut, one reading what it holds out and the other the rest, so that no
// base is in both.
//
//   HoldOut hold_out({"chr22", "regions.bed"});       // a BED file is told by its suffix
//   std::vector<Range> parts = hold_out.held_out_parts("chr22", length);     // {[0, length)}
//
// Every name, glob and BED line must meet a record, else check_all_used() says which did not: a
// misspelled name would train on what it should hold out. Immutable but for the record of use: an
// object belongs to one thread.
#pragma once

#include <string>
#include <vector>

#include "base/range.h"

namespace longspan {

enum class Split { kAll, kTrain, kHeldOut };

// Whether `name` matches a shell glob (* ? [...]); a pattern without these is the name itself.
bool matches_glob(const std::string& pattern, const std::string& name);

class HoldOut {
 public:
  HoldOut() = default;
  // Each entry is a record's name, a glob, or the path of a BED file (*.bed). Errors begin with
  // `named_by`, whose value the entries are.
  explicit HoldOut(const std::vector<std::string>& entries,
                   const std::string& named_by = "hold-out");

  bool empty() const { return globs_.empty() && regions_.empty(); }
  // Normalized ranges of a record of `length` bases; UserError if a BED line leaves the record.
  std::vector<Range> held_out_parts(const std::string& record, int64_t length);
  // UserError naming the first name, glob or BED line that met no record so far.
  void check_all_used() const;

 private:
  struct Glob {
    std::string pattern;
    bool is_used = false;
  };
  struct Region {
    std::string record;
    Range bases;
    std::string where;  // file and line
    bool is_used = false;
  };

  [[noreturn]] void fail(const std::string& what) const;
  void read_bed(const std::string& path);

  std::string named_by_;
  std::vector<Glob> globs_;
  std::vector<Region> regions_;  // sorted by record
};

}  // namespace longspan
