// What a person sees while a run goes on: one line a step, and a progress line for long work.
//
//   std::cout << step_line(metrics) << '\n';
//   Progress progress(std::cerr, is_terminal(2), "pack", total_tokens, "tokens");
//   progress.update(done);  ...  progress.finish();
//
// On a terminal the progress line redraws itself, at most ten times a second; elsewhere (files,
// pipes) it is a plain line at most every ten seconds, and one at the end. Writes only to the
// stream it is given. A Progress belongs to one thread.
#pragma once

#include <cstdint>
#include <functional>
#include <ostream>
#include <string>

#include "observe/step_metrics.h"

namespace longspan {

// "step 120/5000  loss 1.9231  gnorm 0.83  lr 3.0e-4  tok/s 48.1k  mfu 41 %  imb 1.02  mem 92.3/139
// GiB (pred 90.8)  eta 2:14:05"; what is not known is left out.
std::string step_line(const StepMetrics& metrics);

bool is_terminal(int file_descriptor);

class Progress {
 public:
  // Seconds of a clock that never goes back.
  using Clock = std::function<double()>;

  // `total` 0: unknown; then there is no bar, share or remaining time.
  Progress(std::ostream& out, bool terminal, std::string title, int64_t total, std::string unit,
           Clock clock = {});
  ~Progress();
  Progress(const Progress&) = delete;
  Progress& operator=(const Progress&) = delete;

  void update(int64_t done);
  // The last line, with the total time. Called by the destructor if it was not before.
  void finish();

 private:
  std::string line(double now_s) const;
  void draw(const std::string& line);

  std::ostream& out_;
  bool terminal_;
  std::string title_;
  int64_t total_;
  std::string unit_;
  Clock clock_;
  double start_s_;
  double last_drawn_s_;
  int64_t done_ = 0;
  size_t drawn_width_ = 0;
  bool finished_ = false;
};

}  // namespace longspan
