// The JSONL log, the event file (its bytes; tests/python reads it with TensorBoard), and the names
// of metrics.
#include <gtest/gtest.h>

#include <cmath>
#include <fstream>
#include <nlohmann/json.hpp>
#include <set>

#include "base/error.h"
#include "formats/test_folder.h"
#include "observe/chrome_trace.h"
#include "observe/crc32c.h"
#include "observe/event_file.h"
#include "observe/jsonl_log.h"
#include "observe/step_metrics.h"

namespace longspan {
namespace {

std::vector<Json> lines_of(const std::filesystem::path& path) {
  std::vector<Json> lines;
  std::ifstream stream(path);
  for (std::string line; std::getline(stream, line);) lines.push_back(Json::parse(line));
  return lines;
}

void write_step(JsonlLog& log, int64_t step) {
  log.write("step", step, {{"loss", 1.5}});
}

const RunHeader kHeader = {.config_toml = "a = 1\n", .config_hash = "abc", .version = "0.1.0"};

TEST(JsonlLog, WritesOneObjectALine) {
  const TestFolder folder;
  const std::filesystem::path path = folder / "log.jsonl";
  {
    JsonlLog log = JsonlLog::start(path, kHeader);
    log.write("line\nbreak \xff", 1, {{"loss", std::nan("")}});
  }
  const std::vector<Json> lines = lines_of(path);
  ASSERT_EQ(lines.size(), 2U);
  EXPECT_EQ(lines[0].at("kind"), "header");
  EXPECT_EQ(lines[0].at("config"), "a = 1\n");
  EXPECT_EQ(lines[0].at("config_hash"), "abc");
  EXPECT_TRUE(lines[0].at("commit").is_null());
  EXPECT_GE(lines[0].at("machine").at("threads").get<int64_t>(), 1);
  EXPECT_TRUE(lines[1].at("loss").is_null());
  EXPECT_GT(lines[1].at("time").get<double>(), 1.6e9);
}

TEST(JsonlLog, KindsOfLines) {
  const TestFolder folder;
  {
    JsonlLog log = JsonlLog::start(folder / "log.jsonl", kHeader);
    StepMetrics metrics;
    metrics.step = 1;
    log.write(metrics);
    metrics.skipped = true;
    log.write(metrics);
    log.write(EvalMetrics{.step = 1, .loss = 2});
  }
  const std::vector<Json> lines = lines_of(folder / "log.jsonl");
  ASSERT_EQ(lines.size(), 4U);
  EXPECT_EQ(lines[1].at("kind"), "step");
  EXPECT_TRUE(lines[1].contains("loss"));
  EXPECT_EQ(lines[2].at("kind"), "skipped");
  EXPECT_FALSE(lines[2].contains("loss"));
  EXPECT_EQ(lines[3].at("kind"), "eval");
  EXPECT_EQ(lines[3].at("eval_loss"), 2.0);
}

TEST(JsonlLog, ResumeHoldsNoStepTwice) {
  const TestFolder folder;
  const std::filesystem::path path = folder / "log.jsonl";
  {
    JsonlLog log = JsonlLog::start(path, kHeader);
    for (int64_t step = 1; step <= 10; ++step) write_step(log, step);
  }
  // Killed in the middle of a line.
  std::ofstream(path, std::ios::app) << "{\"kind\":\"step\",\"st";
  {
    JsonlLog log = JsonlLog::resume(path, 6, kHeader);
    for (int64_t step = 7; step <= 8; ++step) write_step(log, step);
  }
  {
    JsonlLog log = JsonlLog::resume(path, 4, kHeader);
    write_step(log, 5);
  }
  std::string kinds;
  for (const Json& line : lines_of(path)) {
    kinds += line.at("kind").get<std::string>().substr(0, 1);
    if (line.contains("step")) kinds += text(line.at("step").get<int64_t>());
  }
  EXPECT_EQ(kinds, "hs1s2s3s4r4s5");
}

TEST(JsonlLog, ResumeWithoutAFileStartsOne) {
  const TestFolder folder;
  JsonlLog log = JsonlLog::resume(folder / "log.jsonl", 6, kHeader);
  write_step(log, 7);
  EXPECT_EQ(lines_of(folder / "log.jsonl").size(), 2U);
}

TEST(JsonlLog, NamesTheLineThatIsNotJson) {
  const TestFolder folder;
  const auto path = folder.write("log.jsonl", "{\"kind\":\"header\"}\nnot json\n{}\n");
  try {
    JsonlLog::resume(path, 1, kHeader);
    FAIL();
  } catch (const UserError& error) {
    EXPECT_NE(std::string(error.what()).find("log.jsonl:2"), std::string::npos) << error.what();
  }
  EXPECT_THROW(JsonlLog::start(folder / "no/folder/log.jsonl", kHeader), UserError);
}

TEST(Crc32c, KnownValues) {
  EXPECT_EQ(crc32c(""), 0U);
  EXPECT_EQ(crc32c("123456789"), 0xe3069283U);
  EXPECT_EQ(crc32c(std::string(32, '\0')), 0x8a9136aaU);
  EXPECT_EQ(crc32c(std::string(32, '\xff')), 0x62a8ab43U);
}

TEST(EventFile, RecordsAreFramedAndChecked) {
  const TestFolder folder;
  EventFile events(folder / "tensorboard");
  events.add_scalars(300, {{"loss", 1.5}});
  const std::string bytes = read_text(events.path());
  const auto word = [&](size_t at, size_t size) {
    uint64_t value = 0;
    for (size_t i = 0; i < size; ++i) {
      value |= uint64_t{static_cast<unsigned char>(bytes.at(at + i))} << (8 * i);
    }
    return value;
  };
  std::vector<std::string> payloads;
  for (size_t at = 0; at < bytes.size();) {
    const uint64_t length = word(at, 8);
    EXPECT_EQ(word(at + 8, 4), masked_crc32c(bytes.substr(at, 8)));
    payloads.push_back(bytes.substr(at + 12, length));
    EXPECT_EQ(word(at + 12 + length, 4), masked_crc32c(payloads.back()));
    at += 16 + length;
  }
  ASSERT_EQ(payloads.size(), 2U);
  EXPECT_NE(payloads[0].find("brain.Event:2"), std::string::npos);
  // Step 300 as a varint behind the wall time; summary { value { tag: "loss" simple_value: 1.5 } }.
  EXPECT_EQ(payloads[1].substr(9),
            std::string("\x10\xac\x02\x2a\x0d\x0a\x0b\x0a\x04loss\x15\x00\x00\xc0\x3f", 18));
}

TEST(EventFile, TwoOfOneSecondDoNotMeet) {
  const TestFolder folder;
  const EventFile first(folder.path());
  const EventFile second(folder.path(), 5);
  EXPECT_NE(first.path(), second.path());
  const auto file = folder.write("file", "");
  EXPECT_THROW(EventFile(file / "tensorboard"), UserError);
}

TEST(ChromeTrace, HasTheSlicesAndArrowsOfAllRanks) {
  ChromeTrace first;
  first.name_rank(0, "rank 0");
  first.slice({.rank = 0,
               .track = "work",
               .name = "a \"name\"",
               .category = "forward",
               .begin_us = 1,
               .end_us = 3.5,
               .details = {{"chunk", "2"}}});
  first.arrow_begin(0, "work", 2, "rows 0>1");
  ChromeTrace second;
  second.arrow_end(1, "work", 7, "rows 0>1");
  const Json trace = Json::parse(ChromeTrace::document({first.events(), "", second.events()}));
  const Json& events = trace["traceEvents"];
  ASSERT_EQ(events.size(), 6U);  // two names of tracks among them
  EXPECT_EQ(events[0]["args"]["name"], "rank 0");
  EXPECT_EQ(events[1]["args"]["name"], "work");
  EXPECT_EQ(events[2]["name"], "a \"name\"");
  EXPECT_EQ(events[2]["dur"], 2.5);
  EXPECT_EQ(events[2]["args"]["chunk"], "2");
  EXPECT_EQ(events[3]["ph"], "s");
  EXPECT_EQ(events[5]["ph"], "f");
  EXPECT_EQ(events[3]["id"], events[5]["id"]);
  EXPECT_EQ(events[5]["pid"], 1);
  EXPECT_EQ(Json::parse(ChromeTrace::document({}))["traceEvents"].size(), 0U);
}

TEST(StepMetrics, NamesAreUniqueAndUnknownValuesAreLeftOut) {
  StepMetrics metrics;
  const auto names = [&] {
    std::set<std::string> found;
    for (const auto& [name, value] : scalars(metrics)) {
      EXPECT_TRUE(found.insert(name).second) << name;
      EXPECT_TRUE(std::isfinite(value)) << name;
    }
    return found;
  };
  EXPECT_FALSE(names().contains("mfu(%)"));
  EXPECT_FALSE(names().contains("plan/imbalance_max_over_mean"));
  EXPECT_FALSE(names().contains("memory/max_active(%)"));
  EXPECT_FALSE(names().contains("experts/load_max_over_mean"));
  EXPECT_TRUE(names().contains("loss"));
  metrics.flops = 1e12;
  metrics.peak_flops = 4e12;
  metrics.step_s = 0.5;
  metrics.imbalance = 1.1;
  metrics.expert_imbalance = 1.5;
  metrics.idle_experts = 3;
  metrics.memory_limit_bytes = 100;
  metrics.memory_peak_bytes = 25;
  EXPECT_TRUE(names().contains("plan/imbalance_max_over_mean"));
  EXPECT_TRUE(names().contains("experts/load_max_over_mean"));
  const auto value_of = [&](const std::string& wanted) {
    for (const auto& [name, value] : scalars(metrics)) {
      if (name == wanted) return value;
    }
    return std::nan("");
  };
  EXPECT_EQ(value_of("mfu(%)"), 50.0);
  EXPECT_EQ(value_of("tflops"), 2.0);
  EXPECT_EQ(value_of("experts/idle"), 3.0);
  EXPECT_EQ(value_of("memory/max_active(%)"), 25.0);
  EXPECT_FALSE(names().contains("memory/device_allocations")) << "of GPUs alone";
  metrics.memory_reserved_bytes = int64_t{3} << 30;
  metrics.device_allocations = 17;
  EXPECT_EQ(value_of("memory/max_reserved(GiB)"), 3.0);
  EXPECT_EQ(value_of("memory/device_allocations"), 17.0);
  metrics.skipped = true;
  EXPECT_FALSE(names().contains("loss"));
}

}  // namespace
}  // namespace longspan
