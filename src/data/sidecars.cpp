#include "data/sidecars.h"

#include <algorithm>
#include <cmath>

#include "base/check.h"
#include "formats/little_endian.h"
#include "formats/megatron_shard.h"

namespace longspan {
namespace {

constexpr std::string_view kWeightMagic = "LSWEIGHT";
constexpr std::string_view kNameMagic{"LSNAMES\0", 8};
constexpr uint64_t kVersion = 1;
constexpr int64_t kWeightHeaderBytes = 40;
constexpr int64_t kNameHeaderBytes = 32;
constexpr int64_t kRunBytes = 20;  // i64 begin, i64 end, f32 weight

[[noreturn]] void fail(const std::filesystem::path& path, const std::string& what) {
  throw UserError(text(path.string(), ": ", what, "; pack the shard again, or remove this file"));
}

uint64_t load(const MappedFile& file, int64_t offset) {
  return load_little_endian<uint64_t>(file.bytes(), offset);
}

// What both kinds begin with, and that the arrays of documents + 1 numbers can be there.
void check_start(const MappedFile& file, std::string_view magic, int64_t header_bytes,
                 int64_t documents) {
  if (file.size() < header_bytes || !file.characters().starts_with(magic)) {
    fail(file.path(), "not a sidecar file of this kind, or truncated");
  }
  if (load(file, 8) != kVersion) fail(file.path(), text("version ", load(file, 8), " is unknown"));
  if (load(file, 16) != static_cast<uint64_t>(documents)) {
    fail(file.path(), text("belongs to ", load(file, 16), " documents, the shard has ", documents));
  }
  if ((file.size() - header_bytes) / 8 <= documents) fail(file.path(), "truncated");
}

void check_bin_bytes(const MappedFile& file, int64_t offset, int64_t bin_bytes) {
  if (load(file, offset) != static_cast<uint64_t>(bin_bytes)) {
    fail(file.path(),
         text("belongs to a .bin of ", load(file, offset), " bytes, this one has ", bin_bytes));
  }
}

template <typename T>
void write_array(AtomicFile& file, const std::vector<T>& values) {
  file.write(std::as_bytes(std::span(values)));
}

}  // namespace

WeightSidecar::WeightSidecar(const std::filesystem::path& path, int64_t documents,
                             int64_t bin_bytes)
    : file_(path), documents_(documents) {
  check_start(file_, kWeightMagic, kWeightHeaderBytes, documents);
  check_bin_bytes(file_, 32, bin_bytes);
  const int64_t run_bytes = file_.size() - kWeightHeaderBytes - 8 * (documents + 1);
  if (run_bytes % kRunBytes != 0 ||
      load(file_, 24) != static_cast<uint64_t>(run_bytes / kRunBytes)) {
    fail(path, text("has ", file_.size(), " bytes, which do not fit its ", load(file_, 24),
                    " runs: truncated or damaged"));
  }
  runs_ = run_bytes / kRunBytes;
  if (first_run(0) != 0 || first_run(documents) != static_cast<uint64_t>(runs_)) {
    fail(path, "its documents do not cover its runs: damaged");
  }
}

uint64_t WeightSidecar::first_run(int64_t document) const {
  return load(file_, kWeightHeaderBytes + 8 * document);
}

WeightSidecar::Run WeightSidecar::run(int64_t position) const {
  const int64_t begins = kWeightHeaderBytes + 8 * (documents_ + 1);
  const auto bytes = file_.bytes();
  return {{load_little_endian<int64_t>(bytes, begins + 8 * position),
           load_little_endian<int64_t>(bytes, begins + 8 * (runs_ + position))},
          load_little_endian<float>(bytes, begins + 16 * runs_ + 4 * position)};
}

std::vector<float> WeightSidecar::read(int64_t document, const Range& range, int64_t length) const {
  LONGSPAN_CHECK(document >= 0 && document < documents_, "document ", document, " of ", documents_);
  const uint64_t begin = first_run(document);
  const uint64_t end = first_run(document + 1);
  if (begin > end || end > static_cast<uint64_t>(runs_)) {
    fail(file_.path(),
         text("document ", document, " has the runs [", begin, ", ", end, ") of ", runs_));
  }
  std::vector<float> weights;
  int64_t earlier_end = 0;
  for (auto position = static_cast<int64_t>(begin); position < static_cast<int64_t>(end);
       ++position) {
    const Run found = run(position);
    if (found.tokens.begin < earlier_end || found.tokens.empty() || found.tokens.end > length ||
        !(found.weight >= 0) || !std::isfinite(found.weight)) {
      fail(file_.path(), text("document ", document, " of ", length, " tokens has a run ",
                              found.tokens, " of weight ", found.weight, " after ", earlier_end));
    }
    earlier_end = found.tokens.end;
    const Range part = shift(intersect(found.tokens, range), -range.begin);
    if (part.empty()) continue;
    weights.resize(static_cast<size_t>(range.size()), 1);
    std::fill(weights.begin() + part.begin, weights.begin() + part.end, found.weight);
  }
  return weights;
}

NameSidecar::NameSidecar(const std::filesystem::path& path, int64_t documents, int64_t bin_bytes)
    : file_(path), documents_(documents) {
  check_start(file_, kNameMagic, kNameHeaderBytes, documents);
  check_bin_bytes(file_, 24, bin_bytes);
  text_bytes_ = file_.size() - kNameHeaderBytes - 8 * (documents + 1);
  if (first_byte(0) != 0 || first_byte(documents) != static_cast<uint64_t>(text_bytes_)) {
    fail(path, text("its names should take ", first_byte(documents), " bytes, they take ",
                    text_bytes_, ": truncated or damaged"));
  }
}

uint64_t NameSidecar::first_byte(int64_t document) const {
  return load(file_, kNameHeaderBytes + 8 * document);
}

std::string_view NameSidecar::name(int64_t document) const {
  LONGSPAN_CHECK(document >= 0 && document < documents_, "document ", document, " of ", documents_);
  const uint64_t begin = first_byte(document);
  const uint64_t end = first_byte(document + 1);
  if (begin > end || end > static_cast<uint64_t>(text_bytes_)) {
    fail(file_.path(), text("the name of document ", document, " lies at [", begin, ", ", end,
                            ") of ", text_bytes_, " bytes"));
  }
  return file_.characters()
      .substr(file_.characters().size() - static_cast<size_t>(text_bytes_))
      .substr(begin, end - begin);
}

SidecarWriter::SidecarWriter(const std::filesystem::path& prefix) : prefix_(prefix) {}

void SidecarWriter::append_weights(std::span<const float> weights, int64_t tokens) {
  LONGSPAN_CHECK(weights.empty() || static_cast<int64_t>(weights.size()) == tokens, "weights ",
                 weights.size(), ", tokens ", tokens);
  for (const float weight : weights) {
    const int64_t position = open_tokens_++;
    if (weight == 1) continue;
    const bool goes_on = run_weights_.size() > first_runs_.back() && run_ends_.back() == position &&
                         run_weights_.back() == weight;
    if (goes_on) {
      ++run_ends_.back();
    } else {
      run_begins_.push_back(position);
      run_ends_.push_back(position + 1);
      run_weights_.push_back(weight);
    }
  }
  if (weights.empty()) open_tokens_ += tokens;
}

void SidecarWriter::end_document(std::string_view name) {
  open_tokens_ = 0;
  first_runs_.push_back(run_weights_.size());
  names_ += name;
  first_bytes_.push_back(names_.size());
}

void SidecarWriter::seal(int64_t bin_bytes) {
  sealed_.emplace_back(with_suffix(prefix_, ".names"));
  write_names(sealed_.back(), bin_bytes);
  if (has_weights()) {
    sealed_.emplace_back(with_suffix(prefix_, ".weights"));
    write_weights(sealed_.back(), bin_bytes);
  }
  for (AtomicFile& file : sealed_) file.seal();
}

void SidecarWriter::write_weights(AtomicFile& file, int64_t bin_bytes) const {
  std::string header(kWeightMagic);
  append_little_endian(header, kVersion);
  append_little_endian(header, static_cast<uint64_t>(documents()));
  append_little_endian(header, static_cast<uint64_t>(run_weights_.size()));
  append_little_endian(header, static_cast<uint64_t>(bin_bytes));
  file.write(header);
  write_array(file, first_runs_);
  write_array(file, run_begins_);
  write_array(file, run_ends_);
  write_array(file, run_weights_);
}

void SidecarWriter::write_names(AtomicFile& file, int64_t bin_bytes) const {
  std::string header(kNameMagic);
  append_little_endian(header, kVersion);
  append_little_endian(header, static_cast<uint64_t>(documents()));
  append_little_endian(header, static_cast<uint64_t>(bin_bytes));
  file.write(header);
  write_array(file, first_bytes_);
  file.write(names_);
}

void SidecarWriter::publish() {
  LONGSPAN_CHECK(!sealed_.empty(), "publish before seal: ", prefix_.string());
  for (AtomicFile& file : sealed_) file.publish();
  if (!has_weights()) std::filesystem::remove(with_suffix(prefix_, ".weights"));
}

}  // namespace longspan
