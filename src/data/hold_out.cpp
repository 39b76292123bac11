#include "data/hold_out.h"

#include <fnmatch.h>

#include <algorithm>
#include <charconv>
#include <sstream>

#include "base/check.h"
#include "formats/json.h"

namespace longspan {
namespace {

bool parse_position(const std::string& word, int64_t& value) {
  const auto [end, failure] = std::from_chars(word.data(), word.data() + word.size(), value);
  return failure == std::errc() && end == word.data() + word.size() && value >= 0;
}

// Lines of a BED file that describe the file itself.
bool is_bed_comment(const std::string& line) {
  return line.starts_with("#") || line.starts_with("track") || line.starts_with("browser");
}

}  // namespace

bool matches_glob(const std::string& pattern, const std::string& name) {
  return ::fnmatch(pattern.c_str(), name.c_str(), 0) == 0;
}

HoldOut::HoldOut(const std::vector<std::string>& entries, const std::string& named_by)
    : named_by_(named_by) {
  for (const std::string& entry : entries) {
    if (entry.ends_with(".bed")) {
      read_bed(entry);
    } else {
      globs_.push_back({entry});
    }
  }
  std::stable_sort(regions_.begin(), regions_.end(),
                   [](const Region& a, const Region& b) { return a.record < b.record; });
}

void HoldOut::fail(const std::string& what) const {
  throw UserError(text(named_by_, ": ", what));
}

void HoldOut::read_bed(const std::string& path) {
  std::error_code ignored;
  if (!std::filesystem::exists(path, ignored)) {
    fail(text("cannot read ", path, ": no such file; a name that ends in .bed is a BED file"));
  }
  std::istringstream lines(read_text(path));
  const size_t regions_before = regions_.size();
  std::string line;
  for (int64_t number = 1; std::getline(lines, line); ++number) {
    const bool is_blank = line.find_first_not_of(" \t\r") == std::string::npos;
    if (is_blank || is_bed_comment(line)) continue;
    Region region;
    region.where = text(path, ":", number);
    std::istringstream words(line);
    std::string begin;
    std::string end;
    words >> region.record >> begin >> end;
    if (!parse_position(begin, region.bases.begin) || !parse_position(end, region.bases.end) ||
        region.bases.empty()) {
      fail(text(region.where, ": a line must be 'record begin end' with 0 <= begin < end"));
    }
    regions_.push_back(region);
  }
  if (regions_.size() == regions_before) fail(text(path, " holds no region"));
}

std::vector<Range> HoldOut::held_out_parts(const std::string& record, int64_t length) {
  std::vector<Range> parts;
  for (Glob& glob : globs_) {
    if (!matches_glob(glob.pattern, record)) continue;
    glob.is_used = true;
    parts.push_back({0, length});
  }
  const auto first = std::lower_bound(
      regions_.begin(), regions_.end(), record,
      [](const Region& region, const std::string& name) { return region.record < name; });
  for (auto region = first; region != regions_.end() && region->record == record; ++region) {
    if (region->bases.end > length) {
      fail(text(region->where, ": ends at ", region->bases.end, ", record '", record, "' has ",
                length, " bases"));
    }
    region->is_used = true;
    parts.push_back(region->bases);
  }
  return normalize(std::move(parts));
}

void HoldOut::check_all_used() const {
  for (const Glob& glob : globs_) {
    if (!glob.is_used) {
      fail(text("'", glob.pattern, "' matches no record of the FASTA files"));
    }
  }
  for (const Region& region : regions_) {
    if (!region.is_used) {
      fail(text(region.where, ": record '", region.record, "' is in none of the FASTA files"));
    }
  }
}

}  // namespace longspan
