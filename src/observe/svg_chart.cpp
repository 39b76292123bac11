#include "observe/svg_chart.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "base/error.h"
#include "observe/number_format.h"

namespace longspan {
namespace {

constexpr double kWidth_px = 760;
constexpr double kHeight_px = 300;
constexpr double kLeft_px = 64;
constexpr double kRight_px = 16;
constexpr double kTop_px = 30;
constexpr double kBottom_px = 46;
constexpr double kPlotRight_px = kWidth_px - kRight_px;
constexpr double kPlotBottom_px = kHeight_px - kBottom_px;

std::string px(double value) {
  return fixed_digits(value, 1);
}

// A range of values laid over a range of pixels.
struct Scale {
  double low = 0;
  double high = 1;
  double low_px = 0;
  double high_px = 1;

  double at(double value) const {
    return low_px + (value - low) / (high - low) * (high_px - low_px);
  }
};

struct Extent {
  double low = std::numeric_limits<double>::infinity();
  double high = -std::numeric_limits<double>::infinity();

  void add(double value) {
    low = std::min(low, value);
    high = std::max(high, value);
  }
  bool empty() const { return low > high; }
  // Never of zero width: a single value stands in the middle.
  void widen() {
    if (empty()) *this = {0, 1};
    if (high - low > 1e-12 * std::max(std::abs(low), std::abs(high))) return;
    const double margin = low == 0 ? 1 : std::abs(low) * 0.1;
    low -= margin;
    high += margin;
  }
};

// As many digits as tell neighbouring ticks apart.
std::string tick_text(double value, double spacing) {
  if (std::abs(value) >= 10000) return short_count(value);
  const int digits = spacing >= 1 ? 0 : static_cast<int>(std::ceil(-std::log10(spacing) - 1e-9));
  return fixed_digits(value == 0 ? 0 : value, std::clamp(digits, 0, 9));
}

std::string label(double x, double y, const char* anchor, const std::string& content,
                  const std::string& more = "") {
  return text("<text x=\"", px(x), "\" y=\"", px(y), "\" text-anchor=\"", anchor, "\"", more, ">",
              escape_markup(content), "</text>\n");
}

std::string line(double x1, double y1, double x2, double y2, const char* kind) {
  return text("<line class=\"", kind, "\" x1=\"", px(x1), "\" y1=\"", px(y1), "\" x2=\"", px(x2),
              "\" y2=\"", px(y2), "\"/>\n");
}

std::string open_svg(const std::string& description) {
  return text("<svg viewBox=\"0 0 ", kWidth_px, " ", kHeight_px, "\" role=\"img\" aria-label=\"",
              escape_markup(description), "\">\n");
}

// Horizontal grid, numbers at the left, and the axis names.
std::string frame(const Scale& y, const std::string& x_label, const std::string& y_label) {
  std::string svg;
  const std::vector<double> ticks = round_ticks(y.low, y.high, 5);
  const double spacing = ticks.size() > 1 ? ticks[1] - ticks[0] : 1;
  for (const double tick : ticks) {
    svg += line(kLeft_px, y.at(tick), kPlotRight_px, y.at(tick), "grid");
    svg += label(kLeft_px - 8, y.at(tick) + 4, "end", tick_text(tick, spacing));
  }
  svg += line(kLeft_px, kPlotBottom_px, kPlotRight_px, kPlotBottom_px, "axis");
  svg += label((kLeft_px + kPlotRight_px) / 2, kHeight_px - 8, "middle", x_label);
  const double middle_px = (kTop_px + kPlotBottom_px) / 2;
  svg += label(14, middle_px, "middle", y_label,
               text(" transform=\"rotate(-90 14 ", px(middle_px), ")\""));
  return svg;
}

template <typename Series>
std::string legend(const std::vector<Series>& series) {
  std::string svg;
  double x_px = kLeft_px;
  for (const Series& one : series) {
    if (one.name.empty()) continue;
    svg += text("<rect x=\"", px(x_px), "\" y=\"9\" width=\"12\" height=\"12\" rx=\"2\" fill=\"",
                one.color, "\"/>\n");
    svg += label(x_px + 18, 19, "start", one.name);
    x_px += 40 + 7 * static_cast<double>(one.name.size());
  }
  return svg;
}

std::string x_tick(double at_px, const std::string& content) {
  return line(at_px, kPlotBottom_px, at_px, kPlotBottom_px + 4, "axis") +
         label(at_px, kPlotBottom_px + 18, "middle", content);
}

std::string x_ticks_linear(const Scale& x) {
  std::string svg;
  const std::vector<double> ticks = round_ticks(x.low, x.high, 8);
  const double spacing = ticks.size() > 1 ? ticks[1] - ticks[0] : 1;
  for (const double tick : ticks) svg += x_tick(x.at(tick), tick_text(tick, spacing));
  return svg;
}

// Powers of two, thinned to at most ten. `x` counts in logarithms.
std::string x_ticks_log2(const Scale& x) {
  std::string svg;
  const auto first = static_cast<int>(std::ceil(x.low - 1e-9));
  const auto last = static_cast<int>(std::floor(x.high + 1e-9));
  const int stride = std::max(1, (last - first + 9) / 10);
  for (int power = first; power <= last && power < 62; power += stride) {
    const std::string content =
        power >= 0 ? token_length(int64_t{1} << power) : three_digits(std::exp2(power));
    svg += x_tick(x.at(power), content);
  }
  return svg;
}

using Points = std::vector<std::pair<double, double>>;

Points drawable(const LineSeries& series, bool x_log2) {
  Points points;
  for (const auto& [x, y] : series.points) {
    const double position = x_log2 ? std::log2(x) : x;
    if (std::isfinite(position) && std::isfinite(y)) points.emplace_back(position, y);
  }
  return points;
}

std::string draw_series(const LineSeries& series, const Points& points, const Scale& x,
                        const Scale& y, bool x_log2) {
  std::string path;
  std::string dots;
  const bool draws_dots = series.markers || points.size() == 1;  // one point makes no line
  for (const auto& [position, value] : points) {
    path += text(path.empty() ? "" : " ", px(x.at(position)), ",", px(y.at(value)));
    if (!draws_dots) continue;
    const double shown_x = x_log2 ? std::exp2(position) : position;
    dots += text("<circle cx=\"", px(x.at(position)), "\" cy=\"", px(y.at(value)),
                 "\" r=\"3.2\" fill=\"", series.color, "\"><title>", escape_markup(series.name),
                 ": ", fixed_digits(value, 4), " at ", short_count(std::round(shown_x)),
                 "</title></circle>\n");
  }
  return text("<polyline fill=\"none\" stroke=\"", series.color, "\" stroke-width=\"",
              fixed_digits(series.width_px, 1), "\" stroke-opacity=\"",
              fixed_digits(series.opacity, 2), "\" stroke-linejoin=\"round\" points=\"", path,
              "\"/>\n", dots);
}

}  // namespace

std::vector<double> round_ticks(double low, double high, int count) {
  if (!(high > low) || !std::isfinite(low) || !std::isfinite(high) || count < 1) return {};
  const double raw = (high - low) / count;
  const double power = std::pow(10, std::floor(std::log10(raw)));
  double step = 10 * power;
  for (const double factor : {1.0, 2.0, 5.0}) {
    if (factor * power >= raw * 0.999) {
      step = factor * power;
      break;
    }
  }
  std::vector<double> ticks;
  const double first = std::ceil(low / step - 1e-9);
  for (double index = first; index * step <= high + 1e-9 * step; ++index) {
    ticks.push_back(index * step);
  }
  return ticks;
}

std::string escape_markup(const std::string& content) {
  std::string result;
  for (const char letter : content) {
    switch (letter) {
      case '&':
        result += "&amp;";
        break;
      case '<':
        result += "&lt;";
        break;
      case '>':
        result += "&gt;";
        break;
      case '"':
        result += "&quot;";
        break;
      default:
        result += letter;
    }
  }
  return result;
}

std::string line_chart_svg(const LineChart& chart) {
  std::vector<Points> all;
  Extent x_extent;
  Extent y_extent;
  for (const LineSeries& series : chart.series) {
    all.push_back(drawable(series, chart.x_log2));
    for (const auto& [x, y] : all.back()) {
      x_extent.add(x);
      y_extent.add(y);
    }
  }
  x_extent.widen();
  y_extent.widen();
  const double margin = 0.05 * (y_extent.high - y_extent.low);
  const Scale x{x_extent.low, x_extent.high, kLeft_px, kPlotRight_px};
  const Scale y{y_extent.low - margin, y_extent.high + margin, kPlotBottom_px, kTop_px};
  std::string svg = open_svg(chart.y_label + " by " + chart.x_label);
  svg += frame(y, chart.x_label, chart.y_label);
  svg += chart.x_log2 ? x_ticks_log2(x) : x_ticks_linear(x);
  for (size_t i = 0; i < all.size(); ++i) {
    svg += draw_series(chart.series[i], all[i], x, y, chart.x_log2);
  }
  return svg + legend(chart.series) + "</svg>\n";
}

std::string bar_chart_svg(const BarChart& chart) {
  size_t groups = 0;
  double highest = 0;
  for (const BarSeries& series : chart.series) {
    groups = std::max(groups, series.values.size());
    for (const double value : series.values) {
      if (std::isfinite(value)) highest = std::max(highest, value);
    }
  }
  const Scale y{0, highest > 0 ? highest * 1.08 : 1, kPlotBottom_px, kTop_px};
  std::string svg = open_svg(chart.y_label + " by " + chart.x_label);
  svg += frame(y, chart.x_label, chart.y_label);
  const double group_px =
      (kPlotRight_px - kLeft_px) / static_cast<double>(std::max<size_t>(1, groups));
  const double bar_px = std::min(
      44.0, 0.8 * group_px / static_cast<double>(std::max<size_t>(1, chart.series.size())));
  const size_t stride = (groups + 31) / 32;
  for (size_t group = 0; group < groups; ++group) {
    const double center_px = kLeft_px + group_px * (static_cast<double>(group) + 0.5);
    if (group % stride == 0) svg += label(center_px, kPlotBottom_px + 18, "middle", text(group));
    double left_px = center_px - bar_px * static_cast<double>(chart.series.size()) / 2;
    for (const BarSeries& series : chart.series) {
      const double value = group < series.values.size() ? series.values[group] : 0;
      if (std::isfinite(value) && value > 0) {
        svg += text("<rect x=\"", px(left_px), "\" y=\"", px(y.at(value)), "\" width=\"",
                    px(bar_px * 0.92), "\" height=\"", px(kPlotBottom_px - y.at(value)),
                    "\" fill=\"", series.color, "\"><title>", escape_markup(series.name), ", ",
                    group, ": ", three_digits(value), "</title></rect>\n");
      }
      left_px += bar_px;
    }
  }
  return svg + legend(chart.series) + "</svg>\n";
}

}  // namespace longspan
