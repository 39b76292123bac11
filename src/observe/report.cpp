#include "observe/report.h"

#include <algorithm>
#include <cmath>

#include "base/error.h"
#include "observe/number_format.h"
#include "observe/svg_chart.h"

namespace longspan {
namespace {

constexpr const char* kBlue = "#2563eb";
constexpr const char* kOrange = "#d97706";
constexpr const char* kGray = "#94a3b8";

constexpr const char* kStyle =
    "body{margin:0;background:#f8fafc;color:#0f172a;font:15px/1.5 system-ui,sans-serif}"
    "main{max-width:860px;margin:0 auto;padding:28px 20px 60px}"
    "h1{font-size:24px;margin:0 0 4px}h2{font-size:17px;margin:0 0 6px}"
    "section{background:#fff;border:1px solid #e2e8f0;border-radius:10px;padding:18px 20px;"
    "margin-top:18px}"
    "p{margin:4px 0 10px;color:#475569}"
    "table{border-collapse:collapse;width:100%;font-variant-numeric:tabular-nums}"
    "td,th{padding:4px 10px 4px 0;text-align:left;border-bottom:1px solid #f1f5f9}"
    "th{font-weight:600;color:#475569}td.n,th.n{text-align:right}"
    "svg{width:100%;height:auto;display:block}svg text{font:12px system-ui,sans-serif;fill:#475569}"
    ".grid{stroke:#e2e8f0}.axis{stroke:#94a3b8}"
    "pre{overflow-x:auto;font:13px/1.45 ui-monospace,monospace;margin:8px 0 0}"
    "summary{cursor:pointer;font-weight:600}";

std::string section(const std::string& heading, const std::string& note, const std::string& body) {
  return text("<section><h2>", escape_markup(heading), "</h2>\n",
              note.empty() ? "" : "<p>" + escape_markup(note) + "</p>\n", body, "</section>\n");
}

std::vector<std::pair<double, double>> points_of(const std::vector<StepValue>& values) {
  std::vector<std::pair<double, double>> points;
  for (const auto& [step, value] : values) points.emplace_back(static_cast<double>(step), value);
  return points;
}

// At most `count` points, each the mean of its stretch: a run of 100,000 steps stays a small file.
std::vector<std::pair<double, double>> thinned(const std::vector<StepValue>& values, size_t count) {
  if (values.size() <= count) return points_of(values);
  std::vector<std::pair<double, double>> points;
  for (size_t i = 0; i < count; ++i) {
    const size_t begin = i * values.size() / count;
    const size_t end = (i + 1) * values.size() / count;
    double step_sum = 0;
    double value_sum = 0;
    for (size_t j = begin; j < end; ++j) {
      step_sum += static_cast<double>(values[j].step);
      value_sum += values[j].value;
    }
    const auto size = static_cast<double>(end - begin);
    points.emplace_back(step_sum / size, value_sum / size);
  }
  return points;
}

// Centred mean over about a twenty-fifth of the run, so that the curve does not lag behind.
std::vector<StepValue> smoothed(const std::vector<StepValue>& values) {
  std::vector<StepValue> finite;
  std::vector<double> sums = {0};
  for (const StepValue& value : values) {
    if (!std::isfinite(value.value)) continue;
    finite.push_back(value);
    sums.push_back(sums.back() + value.value);
  }
  const size_t reach = std::max<size_t>(1, finite.size() / 50);
  for (size_t i = 0; i < finite.size(); ++i) {
    // The same reach on both sides, shorter near the ends.
    const size_t side = std::min({reach, i, finite.size() - 1 - i});
    const double sum = sums[i + side + 1] - sums[i - side];
    finite[i].value = sum / static_cast<double>(2 * side + 1);
  }
  return finite;
}

std::string facts_table(const ReportData& report) {
  std::string rows;
  for (const auto& [name, value] : report.facts) {
    rows +=
        text("<tr><th>", escape_markup(name), "</th><td>", escape_markup(value), "</td></tr>\n");
  }
  return "<table>" + rows + "</table>\n";
}

std::string loss_section(const ReportData& report) {
  constexpr size_t kMaxPoints = 800;
  constexpr size_t kSmoothFrom = 60;
  LineChart chart;
  chart.x_label = "step";
  chart.y_label = "loss (nats per token)";
  if (report.train_loss.size() >= kSmoothFrom) {
    chart.series.push_back({.name = "train",
                            .color = kGray,
                            .points = thinned(report.train_loss, kMaxPoints),
                            .width_px = 1,
                            .opacity = 0.7});
    chart.series.push_back({.name = "train, smoothed",
                            .color = kBlue,
                            .points = thinned(smoothed(report.train_loss), kMaxPoints)});
  } else {
    chart.series.push_back(
        {.name = "train", .color = kBlue, .points = points_of(report.train_loss)});
  }
  if (!report.eval_loss.empty()) {
    chart.series.push_back({.name = "held out",
                            .color = kOrange,
                            .points = points_of(report.eval_loss),
                            .markers = true});
  }
  return section("Loss", "", line_chart_svg(chart));
}

std::string position_section(const ReportData& report) {
  LineSeries series{.name = "held out", .color = kOrange, .markers = true};
  std::string rows;
  for (const PositionLoss& bin : report.eval_by_position) {
    // A bin stands at the geometric middle of its positions, counted from 1.
    const double middle = std::sqrt(static_cast<double>(bin.positions.begin + 1) *
                                    static_cast<double>(bin.positions.end));
    series.points.emplace_back(middle, bin.loss);
    rows +=
        text("<tr><td>", token_length(bin.positions.begin), " to ", token_length(bin.positions.end),
             "</td><td class=\"n\">", fixed_digits(bin.loss, 4), "</td><td class=\"n\">",
             fixed_digits(bin.loss / std::log(2.0), 4), "</td><td class=\"n\">",
             short_count(bin.weight), "</td></tr>\n");
  }
  const LineChart chart{.x_label = "position in the document (tokens)",
                        .y_label = "loss (nats per token)",
                        .series = {series},
                        .x_log2 = true};
  return section("Held-out loss by position",
                 "What context is worth: the loss of tokens by how many tokens stand before them.",
                 line_chart_svg(chart) +
                     "<table><tr><th>positions</th><th class=\"n\">loss</th><th class=\"n\">bits"
                     "</th><th class=\"n\">weight</th></tr>\n" +
                     rows + "</table>\n");
}

std::string balance_section(const PlanBalance& balance) {
  const std::string note = text(
      "Attention of each server, in pairs of tokens as the planner charges them, in the chunk of "
      "the last step that is hardest to balance. Max over mean: ",
      fixed_digits(max_over_mean(balance.before), 2), " with ", balance.before_name, ", ",
      fixed_digits(max_over_mean(balance.after), 2), " as planned. The slowest server sets ",
      "the pace.");
  const BarChart chart{.x_label = "server",
                       .y_label = "attention (pairs of tokens)",
                       .series = {{balance.before_name, kGray, balance.before},
                                  {"as planned", kBlue, balance.after}}};
  return section("Balance of attention", note, bar_chart_svg(chart));
}

std::string imbalance_section(const ReportData& report) {
  constexpr size_t kMaxPoints = 800;
  LineChart chart;
  chart.x_label = "step";
  chart.y_label = "max over mean";
  if (!report.imbalance_before.empty()) {
    chart.series.push_back({.name = "every rank its own",
                            .color = kGray,
                            .points = thinned(report.imbalance_before, kMaxPoints)});
  }
  chart.series.push_back({.name = "as planned",
                          .color = kBlue,
                          .points = thinned(report.imbalance_after, kMaxPoints)});
  return section("Imbalance of attention over the run",
                 "In the worst chunk of each step; the worst one at home need not be the worst one "
                 "as planned. The step lines show the planned figure as imb.",
                 line_chart_svg(chart));
}

std::string memory_section(const ReportData& report) {
  const auto cell = [](const std::optional<int64_t>& bytes) {
    return text("<td class=\"n\">",
                bytes ? short_bytes(static_cast<double>(*bytes)) : std::string("-"), "</td>");
  };
  std::string rows;
  for (const MemoryRow& row : report.memory) {
    rows += text("<tr><td>", escape_markup(row.name), "</td>", cell(row.predicted_bytes),
                 cell(row.measured_bytes), "</tr>\n");
  }
  return section("Memory", "",
                 "<table><tr><th>what</th><th class=\"n\">predicted</th><th class=\"n\">measured"
                 "</th></tr>\n" +
                     rows + "</table>\n");
}

}  // namespace

double max_over_mean(const std::vector<double>& times) {
  double sum = 0;
  double largest = 0;
  for (const double time : times) {
    sum += time;
    largest = std::max(largest, time);
  }
  return sum > 0 ? largest * static_cast<double>(times.size()) / sum : 1;
}

std::string html_report(const ReportData& report) {
  std::string page =
      text("<!DOCTYPE html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\"/>\n",
           "<meta name=\"viewport\" content=\"width=device-width, initial-scale=1\"/>\n<title>",
           escape_markup(report.title), "</title>\n<style>", kStyle,
           "</style>\n</head>\n<body><main>\n", "<h1>", escape_markup(report.title), "</h1>\n");
  if (!report.facts.empty()) page += section("The run", "", facts_table(report));
  if (!report.train_loss.empty()) page += loss_section(report);
  if (!report.eval_by_position.empty()) page += position_section(report);
  if (report.balance) page += balance_section(*report.balance);
  if (!report.imbalance_after.empty()) page += imbalance_section(report);
  if (!report.memory.empty()) page += memory_section(report);
  if (!report.config_toml.empty()) {
    page += text("<section><details><summary>Configuration</summary><pre>",
                 escape_markup(report.config_toml), "</pre></details></section>\n");
  }
  return page + "</main></body>\n</html>\n";
}

}  // namespace longspan
