#include "observe/console.h"

#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <utility>

#include "base/error.h"
#include "observe/number_format.h"

namespace longspan {
namespace {

constexpr double kTerminalInterval_s = 0.1;
constexpr double kPlainInterval_s = 10;
constexpr int64_t kBarCells = 24;

double steady_seconds() {
  const auto now = std::chrono::steady_clock::now().time_since_epoch();
  return std::chrono::duration<double>(now).count();
}

std::string norm_text(double norm) {
  return norm != 0 && std::abs(norm) < 0.01 ? short_power(norm) : fixed_digits(norm, 2);
}

}  // namespace

std::string step_line(const StepMetrics& metrics) {
  std::string line = text("step ", metrics.step, "/", metrics.total_steps);
  if (metrics.skipped) {
    line += "  skipped: the loss weights of its tokens add up to 0";
  } else {
    line += "  loss " + fixed_digits(metrics.loss, 4) + "  gnorm " + norm_text(metrics.grad_norm);
  }
  line += "  lr " + short_power(metrics.learning_rate);
  line += "  tok/s " + short_count(metrics.tokens_per_s());
  if (const auto mfu = metrics.mfu()) line += "  mfu " + fixed_digits(100 * *mfu, 0) + " %";
  if (metrics.imbalance) line += "  imb " + fixed_digits(*metrics.imbalance, 2);
  if (metrics.expert_imbalance) line += "  experts " + fixed_digits(*metrics.expert_imbalance, 2);
  if (metrics.memory_peak_bytes > 0) {
    line += "  mem " + three_digits(gib(metrics.memory_peak_bytes));
    if (metrics.memory_limit_bytes > 0) {
      line += text("/", three_digits(gib(metrics.memory_limit_bytes)));
    }
    line += " GiB";
    if (metrics.memory_predicted_bytes) {
      line += " (pred " + three_digits(gib(*metrics.memory_predicted_bytes)) + ")";
    }
  }
  if (metrics.eta_s) line += "  eta " + clock_time(*metrics.eta_s);
  return line;
}

bool is_terminal(int file_descriptor) {
  return ::isatty(file_descriptor) == 1;
}

Progress::Progress(std::ostream& out, bool terminal, std::string title, int64_t total,
                   std::string unit, Clock clock)
    : out_(out),
      terminal_(terminal),
      title_(std::move(title)),
      total_(total),
      unit_(std::move(unit)),
      clock_(clock ? std::move(clock) : Clock(steady_seconds)),
      start_s_(clock_()),
      // The first line may come at once on a terminal; a file waits for its interval.
      last_drawn_s_(terminal ? start_s_ - kTerminalInterval_s : start_s_) {}

Progress::~Progress() {
  finish();
}

void Progress::update(int64_t done) {
  done_ = done;
  const double now_s = clock_();
  if (now_s - last_drawn_s_ < (terminal_ ? kTerminalInterval_s : kPlainInterval_s)) return;
  last_drawn_s_ = now_s;
  draw(line(now_s));
}

void Progress::finish() {
  if (finished_) return;
  finished_ = true;
  const double elapsed_s = clock_() - start_s_;
  draw(text(title_, "  ", short_count(static_cast<double>(done_)), " ", unit_, " in ",
            clock_time(elapsed_s)));
  if (terminal_) out_ << '\n' << std::flush;
}

std::string Progress::line(double now_s) const {
  std::string result = title_ + "  ";
  const auto done = static_cast<double>(done_);
  const double rate = now_s > start_s_ ? done / (now_s - start_s_) : 0;
  if (total_ > 0) {
    const double share = std::clamp(done / static_cast<double>(total_), 0.0, 1.0);
    const auto cells = static_cast<size_t>(std::llround(share * kBarCells));
    if (terminal_) {
      result += text("[", std::string(cells, '#'), std::string(kBarCells - cells, '.'), "]  ");
    }
    result += fixed_digits(100 * share, 0) + " %  " + short_count(done) + "/" +
              short_count(static_cast<double>(total_)) + " " + unit_;
  } else {
    result += short_count(done) + " " + unit_;
  }
  if (rate > 0) {
    result += "  " + short_count(rate) + "/s";
    if (total_ > 0) {
      result += "  eta " + clock_time((static_cast<double>(total_) - done) / rate);
    }
  }
  return result;
}

void Progress::draw(const std::string& line) {
  if (!terminal_) {
    out_ << line << '\n' << std::flush;
    return;
  }
  // Blanks over what a longer line left behind.
  const size_t blanks = drawn_width_ > line.size() ? drawn_width_ - line.size() : 0;
  out_ << '\r' << line << std::string(blanks, ' ') << std::flush;
  drawn_width_ = line.size();
}

}  // namespace longspan
