#include "data/length_stream.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <utility>

#include "base/check.h"
#include "base/error.h"
#include "base/random.h"

namespace longspan {
namespace {

constexpr int64_t kLongTokens = 65536;  // from here on a source document counts as long
constexpr double kShortWeight = 0.5;
constexpr double kLongWeight = 4;
constexpr int64_t kRounding = 16;
constexpr int64_t kSmallestPack = 1024;
constexpr int64_t kLargestPack = int64_t{1} << 40;

struct QuantilePoint {
  double percent;
  double tokens;
};

const std::vector<QuantilePoint> kPretrain = {
    {0, 1},          {1, 63},        {2, 129},        {5, 324},      {10, 646},     {20, 1283},
    {30, 1932},      {40, 2582},     {50, 3227},      {60, 3860},    {70, 4514},    {80, 5156},
    {90, 5784},      {95, 6110},     {97, 6236},      {97.5, 7482},  {98, 10075},   {98.5, 13208},
    {99, 26005},     {99.25, 42039}, {99.5, 69084},   {99.7, 91208}, {99.8, 99110}, {99.85, 107915},
    {99.87, 116345}, {99.9, 119754}, {99.95, 122602}, {100, 124913}};

const std::vector<QuantilePoint> kProlong = {
    {0, 575},         {1, 678},          {5, 801},        {10, 919},       {20, 1130},
    {30, 1347},       {40, 1594},        {50, 1913},      {60, 2361},      {65, 2656},
    {70, 3018},       {75, 3467},        {80, 4050},      {85, 4834},      {90, 6051},
    {93, 7202},       {95, 8378},        {97, 10430},     {98, 12308},     {99, 16262},
    {99.5, 21339},    {99.7, 27809},     {99.8, 32939},   {99.9, 47390},   {99.94, 64960},
    {99.95, 74664},   {99.96, 88290},    {99.97, 100600}, {99.98, 141700}, {99.99, 239494},
    {99.995, 248000}, {99.9965, 312000}, {100, 340149}};

struct HistogramBin {
  int64_t upper_tokens;  // the bin holds lengths from the bin before it, exclusive, to here
  uint64_t documents;
};

const std::vector<HistogramBin> kHist = {
    {10, 30254},     {50, 391188},    {100, 699596},   {200, 1377757}, {500, 3794735},
    {1024, 3316785}, {2048, 2106566}, {4096, 988525},  {8192, 410002}, {16384, 173574},
    {32768, 115007}, {65536, 18428},  {131072, 22513}, {196608, 18284}};

// Lengths by quantile, geometric between the points of a table; short and long ones are drawn
// apart, so that their weights hold exactly.
class QuantileLengths {
 public:
  explicit QuantileLengths(const std::vector<QuantilePoint>& points) : points_(points) {
    size_t idx = 1;
    while (points_[idx].tokens < static_cast<double>(kLongTokens)) ++idx;
    const QuantilePoint& low = points_[idx - 1];
    const QuantilePoint& high = points_[idx];
    const double within = std::log(static_cast<double>(kLongTokens) / low.tokens) /
                          std::log(high.tokens / low.tokens);
    short_percent_ = low.percent + (high.percent - low.percent) * within;
    const double longs = kLongWeight * (100 - short_percent_);
    long_chance_ = longs / (longs + kShortWeight * short_percent_);
  }

  double draw(RandomStream& random) const {
    const bool is_long = random.uniform() < long_chance_;
    const double at = random.uniform();
    const auto border = static_cast<double>(kLongTokens);
    if (is_long) return std::max(border, inverse(short_percent_ + (100 - short_percent_) * at));
    return std::min(border - 1, inverse(short_percent_ * at));
  }

 private:
  double inverse(double percent) const {
    const auto high =
        std::find_if(points_.begin() + 1, points_.end() - 1,
                     [&](const QuantilePoint& point) { return percent <= point.percent; });
    const auto low = high - 1;
    const double within = (percent - low->percent) / (high->percent - low->percent);
    return low->tokens * std::pow(high->tokens / low->tokens, within);
  }

  const std::vector<QuantilePoint>& points_;
  double short_percent_ = 0;
  double long_chance_ = 0;
};

int64_t rounded_up(double tokens) {
  const int64_t whole = std::max<int64_t>(1, std::llround(tokens));
  return (whole + kRounding - 1) / kRounding * kRounding;
}

class PretrainLengths : public DocumentLengths {
 public:
  PretrainLengths(int64_t pack_tokens, uint64_t seed)
      : scale_(static_cast<double>(pack_tokens) / static_cast<double>(kLongTokens)),
        random_(seed, "length stream pretrain") {}
  int64_t next() override { return rounded_up(lengths_.draw(random_) * scale_); }

 private:
  QuantileLengths lengths_{kPretrain};
  double scale_;
  RandomStream random_;
};

class ProlongLengths : public DocumentLengths {
 public:
  ProlongLengths(int64_t pack_tokens, uint64_t seed, double long_ratio)
      : pack_tokens_(pack_tokens),
        long_ratio_(long_ratio),
        random_(seed, "length stream prolong") {}
  int64_t next() override {
    const double tokens = lengths_.draw(random_);
    if (tokens >= static_cast<double>(kLongTokens) && random_.uniform() < long_ratio_) {
      return pack_tokens_;
    }
    return rounded_up(tokens);
  }

 private:
  QuantileLengths lengths_{kProlong};
  int64_t pack_tokens_;
  double long_ratio_;
  RandomStream random_;
};

class HistLengths : public DocumentLengths {
 public:
  explicit HistLengths(uint64_t seed) : random_(seed, "length stream hist") {
    for (const HistogramBin& bin : kHist) documents_ += bin.documents;
  }
  int64_t next() override {
    uint64_t document = random_.below(documents_);
    size_t idx = 0;
    while (document >= kHist[idx].documents) document -= kHist[idx++].documents;
    const int64_t lower = idx == 0 ? 0 : kHist[idx - 1].upper_tokens;
    return random_.between(lower + 1, kHist[idx].upper_tokens);
  }

 private:
  uint64_t documents_ = 0;
  RandomStream random_;
};

std::string known_names() {
  std::string names;
  for (const std::string& name : length_stream_names()) {
    names += (names.empty() ? "" : ", ") + name;
  }
  return names;
}

// "512K" as 524288; 0 if it is no such number.
int64_t parse_tokens(std::string_view word) {
  int64_t unit = 1;
  if (word.ends_with('K')) unit = int64_t{1} << 10;
  if (word.ends_with('M')) unit = int64_t{1} << 20;
  if (word.ends_with('G')) unit = int64_t{1} << 30;
  if (unit > 1) word.remove_suffix(1);
  int64_t number = 0;
  const auto [end, error] = std::from_chars(word.data(), word.data() + word.size(), number);
  if (error != std::errc() || end != word.data() + word.size() || word.empty()) return 0;
  return number > kLargestPack / unit ? 0 : number * unit;
}

}  // namespace

std::vector<std::string> length_stream_names() {
  return {"pretrain", "prolong", "hist"};
}

std::unique_ptr<DocumentLengths> document_lengths(const std::string& name, int64_t pack_tokens,
                                                  uint64_t seed,
                                                  const LengthStreamOptions& options) {
  if (name == "pretrain") return std::make_unique<PretrainLengths>(pack_tokens, seed);
  if (name == "prolong") {
    return std::make_unique<ProlongLengths>(pack_tokens, seed, options.long_ratio);
  }
  if (name == "hist") return std::make_unique<HistLengths>(seed);
  throw UserError(text("unknown length stream \"", name, "\"; choose one of: ", known_names()));
}

LengthStream::LengthStream(const std::string& name_and_length, uint64_t seed,
                           const LengthStreamOptions& options) {
  const size_t colon = name_and_length.find(':');
  if (colon == std::string::npos) {
    throw UserError(text("length stream \"", name_and_length,
                         "\" must be NAME:LEN, such as pretrain:512K; names: ", known_names()));
  }
  const std::string length = name_and_length.substr(colon + 1);
  pack_tokens_ = parse_tokens(length);
  if (pack_tokens_ < kSmallestPack || pack_tokens_ > kLargestPack) {
    throw UserError(text("length stream \"", name_and_length, "\": \"", length,
                         "\" must be a number of tokens from 1K to 1024G, such as 131072 or 128K"));
  }
  documents_ = document_lengths(name_and_length.substr(0, colon), pack_tokens_, seed, options);
  pack_room_ = pack_tokens_;
}

std::vector<int64_t> LengthStream::next_tokens(int64_t tokens) {
  LONGSPAN_CHECK(tokens >= 0, "asked for ", tokens, " tokens");
  std::vector<int64_t> lengths;
  while (tokens > 0) {
    if (document_rest_ == 0) document_rest_ = documents_->next();
    const int64_t piece = std::min({document_rest_, pack_room_, tokens});
    lengths.push_back(piece);
    tokens -= piece;
    document_rest_ -= piece;
    pack_room_ -= piece;
    if (pack_room_ == 0) pack_room_ = pack_tokens_;
  }
  return lengths;
}

}  // namespace longspan
