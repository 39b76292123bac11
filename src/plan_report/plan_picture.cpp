#include "plan_report/plan_picture.h"

#include <algorithm>
#include <array>
#include <cmath>

#include "base/error.h"
#include "observe/number_format.h"
#include "observe/svg_chart.h"

namespace longspan {
namespace {

constexpr double kLeft_px = 56;
constexpr double kTop_px = 78;
constexpr double kPlotWidth_px = 900;
constexpr double kGap_px = 26;
constexpr double kBarWidth_px = 150;
constexpr double kBottom_px = 44;
constexpr double kWidth_px = kLeft_px + kPlotWidth_px + 2 * (kGap_px + kBarWidth_px) + 16;

// Neighbouring documents differ; dark enough for white and light enough for black backgrounds.
constexpr std::array<const char*, 8> kColors = {"#2563eb", "#d97706", "#059669", "#dc2626",
                                                "#7c3aed", "#0891b2", "#be185d", "#65a30d"};

std::string px(double value) {
  return fixed_digits(value, 2);
}

std::string box(double x, double y, double width, double height, const std::string& style,
                const std::string& tooltip = "") {
  std::string result = text("<rect x=\"", px(x), "\" y=\"", px(y), "\" width=\"", px(width),
                            "\" height=\"", px(height), "\" ", style);
  return result +
         (tooltip.empty() ? "/>\n" : text("><title>", escape_markup(tooltip), "</title></rect>\n"));
}

std::string label(double x, double y, const char* anchor, int size_px, const std::string& content) {
  return text("<text x=\"", px(x), "\" y=\"", px(y), "\" font-size=\"", size_px,
              "\" text-anchor=\"", anchor, "\">", escape_markup(content), "</text>\n");
}

class Picture {
 public:
  Picture(const TokenLayout& layout, const PlannedAttention& planned)
      : layout_(layout),
        planned_(planned),
        chunk_(layout.chunk(planned.plan.chunk)),
        row_px_(std::clamp(640.0 / static_cast<double>(planned.plan.servers.size()), 3.0, 22.0)) {}

  std::string draw(const std::string& title) {
    const double height_px = bottom() + kBottom_px;
    std::string svg =
        text("<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 ", px(kWidth_px), " ",
             px(height_px), "\" width=\"", px(kWidth_px), "\" height=\"", px(height_px),
             "\" font-family=\"system-ui, sans-serif\" fill=\"#111827\">\n",
             box(0, 0, kWidth_px, height_px, "fill=\"#ffffff\""));
    svg += label(kLeft_px, 22, "start", 15, title);
    svg += label(kLeft_px, 42, "start", 11,
                 "a box: this server computes these queries, darker where it covers more of their "
                 "keys; outlined: at home; a row is a server");
    svg += draw_documents() + draw_tasks() + draw_homes() + draw_servers();
    svg += draw_loads() + draw_bytes();
    return svg + "</svg>\n";
  }

 private:
  double bottom() const {
    return kTop_px + row_px_ * static_cast<double>(planned_.plan.servers.size());
  }
  double row(size_t server) const { return kTop_px + row_px_ * static_cast<double>(server); }
  double at(int64_t line) const {
    const auto tokens = static_cast<double>(std::max<int64_t>(1, chunk_.size()));
    return kLeft_px + kPlotWidth_px * static_cast<double>(line - chunk_.begin) / tokens;
  }

  // Alternating shades behind the documents, and the lengths of those with room for it.
  std::string draw_documents() const {
    std::string svg;
    bool shaded = false;
    for (const DocumentPart& part : layout_.document_parts(chunk_)) {
      const double width_px = at(part.line.end) - at(part.line.begin);
      shaded = !shaded;
      if (width_px < 0.3) continue;
      if (shaded) {
        svg += box(at(part.line.begin), kTop_px, width_px, bottom() - kTop_px, "fill=\"#f3f4f6\"");
      }
      if (width_px < 34) continue;
      svg += label((at(part.line.begin) + at(part.line.end)) / 2, kTop_px - 6, "middle", 10,
                   token_length(part.positions.size()));
    }
    svg += label(kLeft_px, bottom() + 18, "start", 11,
                 text("documents, by tokens: ", layout_.document_parts(chunk_).size(),
                      " on the line of ", chunk_.size()));
    return svg;
  }

  std::string draw_tasks() const {
    std::string svg;
    for (size_t server = 0; server < planned_.plan.servers.size(); ++server) {
      for (const AttentionTask& task : planned_.plan.servers[server].tasks) {
        const Range line = layout_.to_line(task.document, task.queries);
        const double width_px = std::max(0.4, at(line.end) - at(line.begin));
        const double share =
            static_cast<double>(visible_pairs(task.queries, task.keys)) /
            static_cast<double>(visible_pairs(task.queries, {0, task.queries.end}));
        const auto color = static_cast<size_t>(task.document) % kColors.size();
        svg += box(
            at(line.begin), row(server) + 0.5, width_px, row_px_ - 1,
            text("fill=\"", kColors[color], "\" fill-opacity=\"",
                 fixed_digits(0.25 + 0.65 * share, 2), "\""),
            text("server ", server, ": document ", task.document, ", queries ", task.queries.begin,
                 " to ", task.queries.end, ", keys ", task.keys.begin, " to ", task.keys.end));
      }
    }
    return svg;
  }

  std::string draw_homes() const {
    std::string svg;
    for (size_t server = 0; server < planned_.plan.servers.size(); ++server) {
      const Range piece = layout_.piece(planned_.plan.chunk, static_cast<int>(server));
      if (piece.empty()) continue;
      svg += box(at(piece.begin), row(server), at(piece.end) - at(piece.begin), row_px_,
                 "fill=\"none\" stroke=\"#111827\" stroke-width=\"0.8\"");
    }
    return svg;
  }

  std::string draw_servers() const {
    std::string svg;
    const auto step = static_cast<size_t>(std::ceil(11 / row_px_));
    for (size_t server = 0; server < planned_.plan.servers.size(); server += step) {
      svg +=
          label(kLeft_px - 6, row(server) + std::min(row_px_, 11.0) - 1, "end", 10, text(server));
    }
    return svg;
  }

  // A column of bars, scaled to `most`.
  template <typename Value>
  std::string bars(double left_px, double height_share, double offset_share, double most,
                   const char* color, const Value& value) const {
    std::string svg;
    for (size_t server = 0; server < planned_.prediction.servers.size(); ++server) {
      const double width_px =
          most > 0 ? kBarWidth_px * value(planned_.prediction.servers[server]) / most : 0;
      svg += box(left_px, row(server) + 0.5 + offset_share * (row_px_ - 1), width_px,
                 height_share * (row_px_ - 1), text("fill=\"", color, "\""));
    }
    return svg;
  }

  std::string draw_loads() const {
    const PlanPrediction& prediction = planned_.prediction;
    const double left_px = kLeft_px + kPlotWidth_px + kGap_px;
    const double level_px =
        prediction.max_over_mean > 0 ? left_px + kBarWidth_px / prediction.max_over_mean : left_px;
    std::string svg = bars(left_px, 1, 0, prediction.compute_s, "#6b7280",
                           [](const ServerPrediction& server) { return server.busy_s; });
    svg += text("<line x1=\"", px(level_px), "\" x2=\"", px(level_px), "\" y1=\"", px(kTop_px - 3),
                "\" y2=\"", px(bottom() + 3), "\" stroke=\"#dc2626\" stroke-width=\"1\"/>\n");
    svg += label(left_px, kTop_px - 20, "start", 11, "load; red: the level");
    svg += label(left_px, kTop_px - 6, "start", 10,
                 text("max ", fixed_digits(prediction.compute_s * 1e3, 2),
                      " ms = ", fixed_digits(prediction.max_over_mean, 3), " x level"));
    return svg;
  }

  std::string draw_bytes() const {
    const double left_px = kLeft_px + kPlotWidth_px + 2 * kGap_px + kBarWidth_px;
    double most = 0;
    for (const ServerPrediction& server : planned_.prediction.servers) {
      most = std::max({most, server.out.sent_bytes, server.out.received_bytes});
    }
    std::string svg = bars(left_px, 0.5, 0, most, "#d97706",
                           [](const ServerPrediction& server) { return server.out.sent_bytes; }) +
                      bars(left_px, 0.5, 0.5, most, "#0891b2", [](const ServerPrediction& server) {
                        return server.out.received_bytes;
                      });
    svg += label(left_px, kTop_px - 20, "start", 11, "sent (orange), received");
    svg +=
        label(left_px, kTop_px - 6, "start", 10, text("max ", fixed_digits(most / 1e6, 1), " MB"));
    return svg;
  }

  const TokenLayout& layout_;
  const PlannedAttention& planned_;
  const Range chunk_;
  const double row_px_;
};

}  // namespace

std::string plan_picture_svg(const TokenLayout& layout, const PlannedAttention& planned,
                             const std::string& title) {
  return Picture(layout, planned).draw(title);
}

}  // namespace longspan
