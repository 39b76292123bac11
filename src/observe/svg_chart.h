// Charts as inline SVG: lines over an axis, and grouped bars. Used by the HTML report; no script,
// no network, no fonts of their own.
//
//   LineChart chart;  chart.x_label = "step";  chart.y_label = "loss";
//   chart.series.push_back({.name = "train", .color = "#2563eb", .points = points});
//   html += line_chart_svg(chart);
//
// Values that are not finite are left out. Pure functions; any thread.
#pragma once

#include <string>
#include <utility>
#include <vector>

namespace longspan {

struct LineSeries {
  std::string name;
  std::string color;
  std::vector<std::pair<double, double>> points;  // by rising x
  double width_px = 1.8;
  double opacity = 1;
  bool markers = false;  // with the value as a tooltip; a single point always has one
};

struct LineChart {
  std::string x_label;
  std::string y_label;
  std::vector<LineSeries> series;
  bool x_log2 = false;  // for token positions; x must be positive
};

struct BarSeries {
  std::string name;
  std::string color;
  std::vector<double> values;  // one for each group, not negative
};

struct BarChart {
  std::string x_label;  // groups are numbered from 0
  std::string y_label;
  std::vector<BarSeries> series;
};

std::string line_chart_svg(const LineChart& chart);
std::string bar_chart_svg(const BarChart& chart);

// About `count` round values (1, 2 or 5 times a power of ten apart) within [low, high].
std::vector<double> round_ticks(double low, double high, int count);

// For HTML and SVG text and attributes.
std::string escape_markup(const std::string& content);

}  // namespace longspan
