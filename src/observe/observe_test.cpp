// Numbers, console lines, the machine, charts and the report.
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <sstream>

#include "base/error.h"
#include "base/random.h"
#include "formats/test_folder.h"
#include "observe/build_info.h"
#include "observe/console.h"
#include "observe/machine.h"
#include "observe/number_format.h"
#include "observe/peak_flops.h"
#include "observe/report.h"
#include "observe/svg_chart.h"

namespace longspan {
namespace {

TEST(NumberFormat, ReadsAsPeopleWriteIt) {
  EXPECT_EQ(short_count(48123), "48.1k");
  EXPECT_EQ(short_count(0), "0");
  EXPECT_EQ(short_count(999), "999");
  EXPECT_EQ(short_count(12.34), "12.3");
  EXPECT_EQ(short_count(999'960), "1.00M");
  EXPECT_EQ(short_count(13'107'200), "13.1M");
  EXPECT_EQ(short_count(-2500), "-2.50k");
  EXPECT_EQ(short_bytes(512), "512 B");
  EXPECT_EQ(short_bytes(92.3 * 1073741824), "92.3 GiB");
  EXPECT_EQ(short_bytes(1024.0 * 1024 * 1023.9), "1.00 GiB");
  EXPECT_EQ(clock_time(8045), "2:14:05");
  EXPECT_EQ(clock_time(0.4), "0:00");
  EXPECT_EQ(clock_time(59.6), "1:00");
  EXPECT_EQ(clock_time(100 * 3600), "100:00:00");
  EXPECT_EQ(clock_time(std::nan("")), "?");
  EXPECT_EQ(clock_time(-1), "?");
  EXPECT_EQ(short_power(3e-4), "3.0e-4");
  EXPECT_EQ(short_power(0), "0");
  EXPECT_EQ(short_power(12.3), "1.2e1");
  EXPECT_EQ(three_digits(0.012345), "0.0123");
  EXPECT_EQ(three_digits(139.2), "139");
  EXPECT_EQ(three_digits(99.96), "100");
  EXPECT_EQ(three_digits(std::nan("")), "nan");
  EXPECT_EQ(three_digits(-std::numeric_limits<double>::infinity()), "-inf");
  EXPECT_EQ(token_length(131072), "128K");
  EXPECT_EQ(token_length(1 << 20), "1M");
  EXPECT_EQ(token_length(1000), "1000");
}

// Property: what is written is within half a unit of its third digit.
TEST(NumberFormat, CountsReadBackWithinRounding) {
  const uint64_t seed = 11;
  SCOPED_TRACE(text("seed ", seed));
  RandomStream random(seed, "counts");
  for (int trial = 0; trial < 2000; ++trial) {
    const double value = std::exp(random.uniform() * 34);
    const std::string written = short_count(value);
    size_t used = 0;
    double read = std::stod(written, &used);
    const std::string suffix = written.substr(used);
    const std::string units = "kMGTP";
    if (!suffix.empty()) read *= std::pow(1000, units.find(suffix) + 1);
    EXPECT_NEAR(read, value, 0.00501 * value) << written;
    EXPECT_LE(written.size(), 6U) << written;
  }
}

StepMetrics example() {
  StepMetrics metrics;
  metrics.step = 120;
  metrics.total_steps = 5000;
  metrics.loss = 1.92307;
  metrics.grad_norm = 0.83;
  metrics.learning_rate = 3e-4;
  metrics.tokens = 48100;
  metrics.step_s = 1;
  metrics.flops = 41e12;
  metrics.peak_flops = 100e12;
  metrics.imbalance = 1.02;
  metrics.memory_peak_bytes = static_cast<int64_t>(92.3 * 1073741824);
  metrics.memory_limit_bytes = int64_t{139} << 30;
  metrics.memory_predicted_bytes = static_cast<int64_t>(90.8 * 1073741824);
  metrics.eta_s = 8045;
  return metrics;
}

TEST(Console, StepLine) {
  EXPECT_EQ(step_line(example()),
            "step 120/5000  loss 1.9231  gnorm 0.83  lr 3.0e-4  tok/s 48.1k  mfu 41 %  imb 1.02  "
            "mem 92.3/139 GiB (pred 90.8)  eta 2:14:05");
  StepMetrics bare;
  bare.step = 1;
  bare.total_steps = 2;
  bare.loss = 5.5;
  bare.grad_norm = 0.0004;
  EXPECT_EQ(step_line(bare), "step 1/2  loss 5.5000  gnorm 4.0e-4  lr 0  tok/s 0");
  bare.skipped = true;
  EXPECT_NE(step_line(bare).find("skipped"), std::string::npos);
}

TEST(PeakFlops, AStepThatBeatsThePeakRaisesIt) {
  PeakFlops peak;
  peak.per_second = 50e9;
  peak.description = "50 GFLOP/s (measured)";
  EXPECT_FALSE(peak.raise_to(40e9));
  EXPECT_FALSE(peak.raise_to(50e9));
  EXPECT_EQ(peak.description, "50 GFLOP/s (measured)");
  EXPECT_TRUE(peak.raise_to(80e9));
  EXPECT_FALSE(peak.raise_to(90e9)) << "said once";
  EXPECT_FALSE(peak.raise_to(60e9));
  EXPECT_EQ(peak.per_second, 90e9);
  EXPECT_EQ(peak.description, "90 GFLOP/s (the fastest step; at the start 50 GFLOP/s (measured))");
}

TEST(Console, ProgressInAFileWritesFewPlainLines) {
  double now_s = 100;
  std::ostringstream out;
  {
    Progress progress(out, false, "pack", 1000, "tokens", [&] { return now_s; });
    for (int64_t done = 1; done <= 1000; ++done) {
      now_s += 0.025;
      progress.update(done);
    }
  }
  EXPECT_EQ(out.str(),
            "pack  40 %  400/1.00k tokens  40.0/s  eta 0:15\n"
            "pack  80 %  800/1.00k tokens  40.0/s  eta 0:05\n"
            "pack  1.00k tokens in 0:25\n");
}

TEST(Console, ProgressOnATerminalRedrawsItsLine) {
  double now_s = 0;
  std::ostringstream out;
  {
    Progress progress(out, true, "pack", 4, "files", [&] { return now_s; });
    progress.update(2);  // at once
    now_s = 0.05;
    progress.update(3);  // too soon
    now_s = 1;
    progress.update(4);
    progress.finish();
  }
  const std::string written = out.str();
  EXPECT_EQ(std::count(written.begin(), written.end(), '\r'), 3);
  EXPECT_EQ(std::count(written.begin(), written.end(), '\n'), 1);
  EXPECT_NE(written.find("[############............]  50 %"), std::string::npos);
  EXPECT_EQ(written.find("75 %"), std::string::npos);
  // The last, shorter line covers what stood there.
  const std::string last = written.substr(written.rfind('\r'));
  EXPECT_NE(last.find("in 0:01   "), std::string::npos) << last;
}

TEST(Console, ProgressWithoutATotal) {
  double now_s = 0;
  std::ostringstream out;
  Progress progress(out, true, "read", 0, "documents", [&] { return now_s; });
  now_s = 2;
  progress.update(10);
  EXPECT_EQ(out.str(), "\rread  10 documents  5/s");
}

TEST(Machine, KnowsItself) {
  const MachineInfo machine = describe_machine();
  EXPECT_FALSE(machine.host.empty());
  EXPECT_NE(machine.system.find("Linux"), std::string::npos);
  EXPECT_GE(machine.threads, 1);
  EXPECT_GT(machine.memory_bytes, int64_t{64} << 20);
}

// AddressSanitizer keeps memory that was freed, to see who still uses it.
#if defined(__SANITIZE_ADDRESS__)
constexpr bool kFreedIsGone = false;
#elif defined(__has_feature)
constexpr bool kFreedIsGone = !__has_feature(address_sanitizer);
#else
constexpr bool kFreedIsGone = true;
#endif

TEST(Machine, PeakFollowsWhatIsTouched) {
  const int64_t resident = resident_bytes();
  const int64_t before = peak_resident_bytes();
  EXPECT_GE(before, resident);
  constexpr size_t kBytes = 64 << 20;
  {
    std::vector<char> block(kBytes);
    for (size_t i = 0; i < kBytes; i += 4096) {
      static_cast<volatile char*>(block.data())[i] = 1;
    }
    EXPECT_GE(resident_bytes(), static_cast<int64_t>(kBytes));
  }
  EXPECT_GE(peak_resident_bytes(), static_cast<int64_t>(kBytes));
  if (reset_peak_resident() && kFreedIsGone) {
    EXPECT_LT(peak_resident_bytes(), before + static_cast<int64_t>(kBytes));
  }
}

TEST(Machine, LimitsOfControlGroups) {
  const TestFolder folder;
  folder.write("proc/meminfo", "MemTotal:       16777216 kB\nMemFree: 1 kB\n");
  EXPECT_EQ(memory_limit_bytes(folder.path()), int64_t{16} << 30);

  // Version 2: the inner group has no limit, its parent has.
  folder.write("proc/self/cgroup", "0::/job/step\n");
  folder.write("sys/fs/cgroup/job/step/memory.max", "max\n");
  folder.write("sys/fs/cgroup/job/memory.max", "2147483648\n");
  folder.write("sys/fs/cgroup/job/cpu.max", "100000 100000\n");
  EXPECT_EQ(memory_limit_bytes(folder.path()), int64_t{2} << 30);
  EXPECT_EQ(usable_threads(folder.path()), 1);

  // Version 1, in a container: the path is that of the host, the mount shows the group itself.
  folder.write("proc/self/cgroup", "4:cpu,cpuacct:/docker/abc\n3:memory:/docker/abc\n");
  folder.write("sys/fs/cgroup/memory/memory.limit_in_bytes", "1073741824\n");
  EXPECT_EQ(memory_limit_bytes(folder.path()), int64_t{1} << 30);
  folder.write("sys/fs/cgroup/memory/memory.limit_in_bytes", "9223372036854771712\n");
  EXPECT_EQ(memory_limit_bytes(folder.path()), int64_t{16} << 30);
}

TEST(BuildInfo, CommitIsKnownOrEmpty) {
  const std::string commit(build_commit());
  if (!commit.empty()) {
    EXPECT_EQ(commit.substr(0, 12).find_first_not_of("0123456789abcdef"), std::string::npos);
  }
}

TEST(SvgChart, RoundTicks) {
  EXPECT_EQ(round_ticks(0, 10, 5), (std::vector<double>{0, 2, 4, 6, 8, 10}));
  EXPECT_EQ(round_ticks(7, 93, 5), (std::vector<double>{20, 40, 60, 80}));
  EXPECT_TRUE(round_ticks(1, 1, 5).empty());
  const uint64_t seed = 3;
  SCOPED_TRACE(text("seed ", seed));
  RandomStream random(seed, "ticks");
  for (int trial = 0; trial < 1000; ++trial) {
    const double low = random.normal() * 1000;
    const double high = low + std::exp(random.uniform() * 20 - 10);
    const std::vector<double> ticks = round_ticks(low, high, 5);
    EXPECT_GE(ticks.size(), 2U) << low << " " << high;
    EXPECT_LE(ticks.size(), 7U) << low << " " << high;
    const double slack = 1e-6 * (high - low);
    EXPECT_GE(ticks.front(), low - slack);
    EXPECT_LE(ticks.back(), high + slack);
  }
}

TEST(SvgChart, DrawsOnlyFiniteValues) {
  const double nan = std::nan("");
  const LineChart chart{.x_label = "step",
                        .y_label = "loss",
                        .series = {{.name = "a<b", .points = {{1, 2}, {2, nan}, {3, 4}}}}};
  const std::string svg = line_chart_svg(chart);
  EXPECT_EQ(svg.find("nan"), std::string::npos);
  EXPECT_NE(svg.find("a&lt;b"), std::string::npos);
  // One point makes no line, so it is drawn as a dot.
  EXPECT_EQ(svg.find("<circle"), std::string::npos);
  const LineChart single{.x_label = "step", .y_label = "loss", .series = {{.points = {{1, 2}}}}};
  EXPECT_NE(line_chart_svg(single).find("<circle"), std::string::npos);
  // Charts without data, with one point and with equal values are still charts.
  for (const auto& points : std::vector<std::vector<std::pair<double, double>>>{
           {}, {{5, 1}}, {{1, 0}, {2, 0}}, {{1, nan}}}) {
    const std::string empty = line_chart_svg({.series = {{.points = points}}, .x_log2 = true});
    EXPECT_EQ(empty.find("nan"), std::string::npos);
    EXPECT_EQ(empty.find("inf"), std::string::npos);
  }
  EXPECT_EQ(bar_chart_svg({.series = {{"a", "red", {}}}}).find("nan"), std::string::npos);
  EXPECT_EQ(bar_chart_svg({.series = {{"a", "red", {0, nan}}}}).find("nan"), std::string::npos);
}

TEST(Report, HoldsItsParts) {
  ReportData report;
  report.title = "runs/<x>";
  EXPECT_EQ(html_report(report).find("<svg"), std::string::npos);
  report.facts = {{"model", "a & b"}};
  for (int64_t step = 1; step <= 5000; ++step) report.train_loss.push_back({step, 1.0});
  report.eval_by_position = {{{0, 128}, 2.0, 10}, {{128, 256}, 1.0, 10}};
  report.balance = {.before = {1, 3}, .after = {2, 2}};
  const std::string page = html_report(report);
  EXPECT_NE(page.find("runs/&lt;x&gt;"), std::string::npos);
  EXPECT_NE(page.find("a &amp; b"), std::string::npos);
  EXPECT_NE(page.find("1.50 with every rank its own, 1.00 as planned"), std::string::npos);
  EXPECT_EQ(page.find("http"), std::string::npos) << "a report must not need a network";
  EXPECT_LT(page.size(), 60'000U) << "5000 steps must be thinned";
  EXPECT_EQ(max_over_mean({}), 1);
  EXPECT_EQ(max_over_mean({0, 0}), 1);
  EXPECT_EQ(max_over_mean({1, 3}), 1.5);
}

}  // namespace
}  // namespace longspan
