// write_sample_logs FOLDER: an event file, a JSONL log and a report of a made-up run that is killed
// at step 120 and resumed from step 80, for the tests that read them with other programs.
#include <cmath>
#include <filesystem>
#include <iostream>

#include "formats/json.h"
#include "observe/build_info.h"
#include "observe/event_file.h"
#include "observe/jsonl_log.h"
#include "observe/report.h"

namespace longspan {
namespace {

StepMetrics sample_step(int64_t step) {
  StepMetrics metrics;
  metrics.step = step;
  metrics.total_steps = 200;
  const double x = static_cast<double>(step);
  metrics.loss = 1.4 + 4.1 * std::exp(-x / 30) + 0.12 * std::sin(x * 12.9898) * std::cos(x * 78.2);
  metrics.loss_max = metrics.loss * 1.5;
  metrics.grad_norm = 0.5;
  metrics.learning_rate = 3e-4;
  metrics.tokens = 65536;
  metrics.weighted_tokens = 65000;
  metrics.longest_document = 40000;
  metrics.pack_fill = 0.97;
  metrics.step_s = 1.25;
  metrics.data_s = 0.01;
  metrics.imbalance_home = 1.9 + 0.5 * std::sin(x * 3.7);
  metrics.imbalance = 1.02 + 0.01 * std::sin(x);
  metrics.memory_peak_bytes = int64_t{3} << 30;
  metrics.memory_limit_bytes = int64_t{16} << 30;
  return metrics;
}

void write_logs(const std::filesystem::path& folder) {
  const RunHeader header{.config_toml = "[model]\npreset = \"llama_tiny\"\n",
                         .config_hash = "0123456789abcdef",
                         .version = "0.1.0",
                         .commit = std::string(build_commit())};
  const auto write_steps = [](JsonlLog& log, EventFile& events, int64_t first, int64_t last) {
    for (int64_t step = first; step <= last; ++step) {
      const StepMetrics metrics = sample_step(step);
      log.write(metrics);
      events.add_scalars(step, scalars(metrics));
    }
  };
  {
    JsonlLog log = JsonlLog::start(folder / "log.jsonl", header);
    EventFile events(folder / "tensorboard");
    write_steps(log, events, 1, 120);
  }
  JsonlLog log = JsonlLog::resume(folder / "log.jsonl", 80, header);
  EventFile events(folder / "tensorboard", 80);
  write_steps(log, events, 81, 200);
  const EvalMetrics evaluated{.step = 200, .loss = 1.5, .tokens = 10000, .eval_s = 0.5};
  log.write(evaluated);
  events.add_scalars(200, scalars(evaluated));
}

ReportData sample_report() {
  ReportData report;
  report.title = "runs/sample";
  report.facts = {{"model", "llama, 4 layers x 256, 3.2M parameters"},
                  {"documents", "180 of 206; 26 longer than a micro-batch left out"},
                  {"tokens", "13.1M in 200 steps, 48.1k a second"},
                  {"ranks", "4 in one process, 2 chunks"}};
  for (int64_t step = 1; step <= 200; ++step) {
    const StepMetrics metrics = sample_step(step);
    report.train_loss.push_back({step, metrics.loss});
    report.imbalance_before.push_back({step, *metrics.imbalance_home});
    report.imbalance_after.push_back({step, *metrics.imbalance});
    if (step % 50 == 0) report.eval_loss.push_back({step, metrics.loss + 0.1});
  }
  for (int64_t begin = 0, end = 256; end <= 65536; begin = end, end *= 2) {
    report.eval_by_position.push_back(
        {{begin, end}, 2.3 - 0.08 * std::log2(static_cast<double>(end)), 1e5});
  }
  report.balance = {.before = {0.31, 0.92, 1.83, 0.74}, .after = {0.96, 0.94, 0.95, 0.95}};
  report.memory = {{"weights", int64_t{13} << 20, int64_t{13} << 20},
                   {"carried context", int64_t{64} << 20, std::nullopt},
                   {"whole process, peak", std::nullopt, int64_t{3} << 30}};
  report.config_toml = "[model]\npreset = \"llama_tiny\"  # <default> & more\n";
  return report;
}

}  // namespace
}  // namespace longspan

int main(int argc, char** argv) {
  if (argc != 2) {
    std::cerr << "usage: write_sample_logs FOLDER\n";
    return 2;
  }
  try {
    const std::filesystem::path folder = argv[1];
    std::filesystem::create_directories(folder);
    longspan::write_logs(folder);
    longspan::write_text_atomic(folder / "report.html",
                                longspan::html_report(longspan::sample_report()));
  } catch (const std::exception& error) {
    std::cerr << error.what() << '\n';
    return 2;
  }
  return 0;
}
