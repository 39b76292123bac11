#include <gtest/gtest.h>

#include <filesystem>
#include <functional>
#include <nlohmann/json.hpp>
#include <numeric>

#include "base/error.h"
#include "baselines/registry.h"
#include "formats/json.h"
#include "plan_report/explain_plan.h"
#include "plan_report/plan_picture.h"
#include "plan_report/plan_request.h"
#include "plan_report/study_text.h"
#include "planner/home_plan.h"
#include "spec/flops.h"
#include "spec/presets.h"

namespace longspan {
namespace {

class PlanReport : public testing::Test {
 protected:
  void SetUp() override {
    const auto* test = testing::UnitTest::GetInstance()->current_test_info();
    path_ = std::filesystem::temp_directory_path() /
            (std::string("longspan_plan_report_") + test->name() + ".txt");
  }
  void TearDown() override { std::filesystem::remove(path_); }

  std::string lengths_file(const std::string& content) const {
    write_text_atomic(path_, content);
    return path_.string();
  }

  std::filesystem::path path_;
};

// The message of the UserError that this throws; empty if none.
std::string error_of(const std::function<void()>& action) {
  try {
    action();
  } catch (const UserError& error) {
    return error.what();
  }
  return "";
}

PlanOptions small_stream() {
  return {.stream = "hist:16K", .servers = 8, .tokens_per_rank = "16K", .batches = 3};
}

TEST_F(PlanReport, FileFillsBatchesInOrder) {
  const TokenGrid grid{2, 100};
  const auto batches = file_batches(lengths_file("150\n50\n100\n100\n7\n"), grid, 3);
  ASSERT_EQ(batches.size(), 3U);
  EXPECT_EQ(batches[0].lengths, (std::vector<int64_t>{150, 50}));
  EXPECT_TRUE(batches[0].pack_borders.empty());
  EXPECT_EQ(batches[1].lengths, (std::vector<int64_t>{100, 100}));
  EXPECT_EQ(batches[1].pack_borders, (std::vector<int64_t>{0, 100, 200}));
  EXPECT_EQ(batches[2].lengths, (std::vector<int64_t>{7}));
}

TEST_F(PlanReport, FileThatDoesNotFitIsAnError) {
  const TokenGrid grid{2, 100};
  EXPECT_NE(error_of([&] {
              file_batches(lengths_file("10\n201\n"), grid, 9);
            }).find(":2: a document of 201 tokens does not fit the grid of 200 tokens"),
            std::string::npos);
  EXPECT_NE(error_of([&] {
              file_batches(lengths_file("150\n60\n10\n"), grid, 1);
            }).find("holds 70 tokens more than 1 batch"),
            std::string::npos);
  for (const char* content : {"0\n", "-5\n", "12a\n", "1.5\n", ""}) {
    EXPECT_NE(error_of([&] { file_batches(lengths_file(content), grid, 1); }), "") << content;
  }
}

TEST_F(PlanReport, TokenCounts) {
  EXPECT_EQ(parse_token_count("131072", "--t"), 131072);
  EXPECT_EQ(parse_token_count("128K", "--t"), 131072);
  EXPECT_EQ(parse_token_count("2M", "--t"), int64_t{2} << 20);
  for (const char* word : {"", "0", "-1", "12k3", "K", "1e5", "128KB", "99999999999G"}) {
    EXPECT_NE(error_of([&] { parse_token_count(word, "--t"); }).find("--t"), std::string::npos)
        << word;
  }
}

TEST_F(PlanReport, WrongRequestsSayWhatIsWrong) {
  const auto error_with = [](const std::function<void(PlanOptions&)>& change) {
    PlanOptions options = small_stream();
    change(options);
    return error_of([&] { make_request(options); });
  };
  const auto expect = [](const std::string& message, const std::string& part) {
    EXPECT_NE(message.find(part), std::string::npos) << message << " lacks " << part;
  };
  EXPECT_EQ(error_with([](PlanOptions&) {}), "");
  expect(error_with([](PlanOptions& o) { o.stream = "pretrian:16K"; }), "\"pretrain\"");
  expect(error_with([](PlanOptions& o) { o.stream = "pretrain:0"; }), "pretrain:0");
  expect(error_with([](PlanOptions& o) { o.stream.clear(); }), "--lengths");
  expect(error_with([](PlanOptions& o) { o.lengths = "x.txt"; }), "one of them");
  expect(error_with([](PlanOptions& o) { o.servers = 0; }), "--servers");
  expect(error_with([](PlanOptions& o) { o.servers = -3; }), "--servers -3");
  expect(error_with([](PlanOptions& o) { o.tokens_per_rank = "-7"; }), "--tokens-per-rank -7");
  expect(error_with([](PlanOptions& o) { o.batches = -1; }), "--batches");
  expect(error_with([](PlanOptions& o) { o.batches = int64_t{1} << 40; }), "at most");
  expect(error_with([](PlanOptions& o) { o.model = "lama-8b"; }), "\"llama_8b\"");
  expect(error_with([](PlanOptions& o) { o.model = "./nowhere"; }), "no such folder");
  expect(error_with([](PlanOptions& o) { o.cluster = "h200-5"; }), "\"h200_50\"");
  expect(error_with([](PlanOptions& o) { o.gpus_per_server = 3; }), "3");
  expect(error_with([](PlanOptions& o) { o.gpus_per_server = 0; }), "--gpus-per-server");
  expect(error_with([](PlanOptions& o) { o.baselines = {"wbl"}; }), "\"wlb\"");
}

TEST_F(PlanReport, LinearWorkOfTheKnownShapes) {
  EXPECT_DOUBLE_EQ(linear_flops_per_token(preset_spec("llama_8b")), 8192.0 * 53248);
  EXPECT_DOUBLE_EQ(wlb_breakpoint_tokens(preset_spec("llama_8b")), 64000);
  EXPECT_DOUBLE_EQ(wlb_breakpoint_tokens(preset_spec("llama_34b")), 131072);
}

// In any batch and direction, the makespan is at most 1 % above that of any policy on the same
// pieces; dp has packs of its own.
TEST_F(PlanReport, NoBaselineIsAhead) {
  struct Point {
    const char* stream;
    int64_t servers;
    int64_t gpus_per_server;
    const char* tokens_per_rank;
  };
  for (const Point& point :
       {Point{"hist:128K", 8, 8, "128K"}, Point{"pretrain:512K", 16, 8, "128K"},
        Point{"prolong:256K", 32, 1, "64K"}}) {
    const PlanStudy study = study_plans(make_request({.stream = point.stream,
                                                      .servers = point.servers,
                                                      .tokens_per_rank = point.tokens_per_rank,
                                                      .gpus_per_server = point.gpus_per_server,
                                                      .batches = 2,
                                                      .all_baselines = true}));
    for (const BaselineStudy& baseline : study.baselines) {
      if (baseline.name == "dp" || !baseline.applies) continue;
      EXPECT_GT(baseline.worst_ratio, 0) << baseline.name;
      EXPECT_LE(baseline.worst_ratio, 1.01) << baseline.name << " on " << point.stream;
    }
    for (const PlanFigures* figures : {&study.ours.forward, &study.ours.backward}) {
      EXPECT_LE(figures->makespan_s, 1.05 * figures->lower_bound_s) << point.stream;
    }
  }
}

// Which keys the JSON has, and that its figures are sane: what scripts rely on.
TEST_F(PlanReport, StudyHasAllFigures) {
  PlanOptions options = small_stream();
  options.all_baselines = true;
  const PlanStudy study = study_plans(make_request(options));
  const Json json = study_json(study);
  const std::vector<std::string> keys = {"max_over_mean",   "makespan_s",     "lower_bound_s",
                                         "send_bytes_mean", "send_bytes_max", "recv_bytes_max",
                                         "kv_copies_max",   "aligned_share",  "plan_ms"};
  const auto check = [&](const Json& figures, const std::string& where) {
    for (const std::string& key : keys) {
      ASSERT_TRUE(figures.contains(key)) << where << " lacks " << key;
      ASSERT_TRUE(figures.at(key).is_number()) << where << " " << key;
    }
    EXPECT_GE(figures.at("max_over_mean").get<double>(), 1 - 1e-9) << where;
    EXPECT_LE(figures.at("lower_bound_s").get<double>(), figures.at("makespan_s").get<double>())
        << where;
    EXPECT_LE(figures.at("send_bytes_mean").get<double>(),
              figures.at("send_bytes_max").get<double>())
        << where;
  };
  check(json, "top");
  check(json.at("backward"), "backward");
  EXPECT_EQ(json.at("kv_copies_max").get<double>(), 1);
  EXPECT_EQ(json.at("aligned_share").get<double>(), 1);
  ASSERT_EQ(json.at("baselines").size(), baseline_names().size());
  for (const std::string& name : baseline_names()) {
    check(json.at("baselines").at(name), name);
    // The worst batch is no better than the mean of all.
    const auto mean_ratio = [&](const Json& ours, const Json& theirs) {
      return ours.at("makespan_s").get<double>() / theirs.at("makespan_s").get<double>();
    };
    const Json& baseline = json.at("baselines").at(name);
    const double worst_ratio = baseline.at("worst_ratio").get<double>();
    EXPECT_GE(worst_ratio, mean_ratio(json, baseline) - 1e-9) << name;
    EXPECT_GE(worst_ratio, mean_ratio(json.at("backward"), baseline.at("backward")) - 1e-9) << name;
    EXPECT_LE(worst_ratio, 1.01) << name;
    check(json.at("baselines").at(name).at("backward"), name);
    EXPECT_LE(json.at("makespan_s").get<double>(),
              1.01 * json.at("baselines").at(name).at("makespan_s").get<double>())
        << name;
  }
  EXPECT_EQ(json.at("servers").size(), 8U);
  const std::string text = study_text(study);
  EXPECT_NE(text.find("lower bound"), std::string::npos) << text;
  EXPECT_NE(text.find("published-0.05"), std::string::npos) << text;
}

TEST_F(PlanReport, DpDoesNotApplyWithoutAPackPerServer) {
  PlanOptions options = small_stream();
  options.stream = "hist:32K";
  options.baselines = {"dp"};
  const PlanStudy study = study_plans(make_request(options));
  EXPECT_FALSE(study.baselines.at(0).applies);
  EXPECT_NE(study_text(study).find("does not apply"), std::string::npos);
  EXPECT_EQ(study_json(study).at("not_applicable"), Json::array({"dp"}));
}

TEST_F(PlanReport, SameRequestSamePlans) {
  const PlanStudy first = study_plans(make_request(small_stream()));
  const PlanStudy second = study_plans(make_request(small_stream()));
  EXPECT_EQ(first.example.forward.plan, second.example.forward.plan);
  EXPECT_EQ(first.ours.backward.makespan_s, second.ours.backward.makespan_s);
}

TEST_F(PlanReport, AlignedShareCountsCutsInsideDocuments) {
  const TokenLayout layout = TokenLayout::make({1000, 24}, {.chunks = 1, .shares = {1, 1}});
  AttentionPlan plan = home_plan(layout, 0, Direction::kForward);
  EXPECT_EQ(aligned_share(layout, plan), 1);
  plan.servers[0].tasks = {{0, {0, 100}, {0, 100}}, {0, {100, 512}, {0, 512}}};
  EXPECT_EQ(aligned_share(layout, plan), 0);
  plan.servers[0].tasks = {
      {0, {0, 100}, {0, 100}}, {0, {100, 512}, {0, 256}}, {0, {100, 512}, {256, 512}}};
  EXPECT_DOUBLE_EQ(aligned_share(layout, plan), 2.0 / 5);
}

TEST_F(PlanReport, ExplainsAndDraws) {
  const PlanStudy study = study_plans(make_request(small_stream()));
  const std::string text = explain_plan(study.example, study.request.planner);
  for (const char* part : {"+ balance", "+ choose", "bound: no plan is faster", "Backward"}) {
    EXPECT_NE(text.find(part), std::string::npos) << text << "\nlacks " << part;
  }
  const std::string svg = plan_picture_svg(study.example.layout, study.example.forward, "a < b");
  EXPECT_EQ(svg.rfind("<svg", 0), 0U);
  EXPECT_NE(svg.find("a &lt; b"), std::string::npos);
  size_t boxes = 0;
  for (size_t at = svg.find("<title>"); at != std::string::npos; at = svg.find("<title>", at + 1)) {
    ++boxes;
  }
  size_t tasks = 0;
  for (const ServerPlan& server : study.example.forward.plan.servers) tasks += server.tasks.size();
  EXPECT_EQ(boxes, tasks);
}

// Far from the bound, the reader is told why; a full batch needs no such sentence.
TEST_F(PlanReport, ExplainsWhySmallBatchesAreFarFromTheirBound) {
  const auto explained = [](const std::vector<int64_t>& lengths, int servers) {
    const TokenLayout layout = TokenLayout::make(
        lengths, {.chunks = 1, .shares = std::vector<double>(static_cast<size_t>(servers), 1.0)});
    const AttentionSizes sizes{.query_heads = 32, .key_heads = 8, .key_width = 128};
    const PlanningCosts costs = uniform_costs(sizes, device_profile("h200"),
                                              server_links(cluster_preset("h200_50"), 1), servers);
    PlanExample example{layout, 0, costs, {}, {}};
    example.forward = plan_attention(layout, 0, Direction::kForward, costs);
    example.backward = plan_attention(layout, 0, Direction::kBackward, costs);
    return explain_plan(example, {});
  };
  const std::string small = explained({500, 400, 300, 200, 100}, 8);
  EXPECT_NE(small.find("why so far: the bound is "), std::string::npos) << small;
  EXPECT_NE(small.find("The batch is too small to fill the servers: "), std::string::npos) << small;
  EXPECT_NE(small.find(" tiles of 128 x 128 tokens for 8 servers"), std::string::npos) << small;
  EXPECT_NE(small.find("Launches, tasks and messages cost "), std::string::npos) << small;
  const std::string full = explained(std::vector<int64_t>(64, 16384), 4);
  EXPECT_EQ(full.find("why so far"), std::string::npos) << full;
}

// Two chunks and a dedicated server.
TEST_F(PlanReport, RunIsPlannedWithItsChunksAndServers) {
  PlanningCosts costs = pair_costs({.query_heads = 4, .key_width = 64}, 1e12, 1e9, 3);
  costs.speed = {0, 0, 1};
  const RunPlanning run{.model = preset_spec("llama_tiny"),
                        .profile = "built-in",
                        .chunks = 2,
                        .token_shares = {1, 1, 0},
                        .costs = costs};
  const auto packer = std::make_shared<Packer>(std::vector<int64_t>{4000, 300, 2000, 1500},
                                               PackOptions{.seed = 1, .micro_batch_tokens = 4096});
  const PlanStudy study = study_plans(make_run_request(run, packed_batches(packer, 2), {}));
  EXPECT_EQ(study.example.layout.num_chunks(), 2);
  EXPECT_EQ(study.example.forward.plan.servers[0].tasks.size(), 0U);
  EXPECT_GT(study.ours.forward.send_bytes_max, 0);
  EXPECT_EQ(study.example.costs.forward.window.enter_s, 0);
  PlanOptions options;
  options.baselines = {"zigzag"};
  const auto compare = [&] {
    study_plans(make_run_request(run, packed_batches(packer, 1), options));
  };
  EXPECT_NE(error_of(compare).find("chunks=1"), std::string::npos);
  EXPECT_NE(error_of([&] { make_run_request(run, {}, {.servers = 4}); }), "");
}

// GLM has no core attention: its plan spreads the scoring of an index, forward only.
TEST_F(PlanReport, ScoringOfAnIndexIsPlannedAndItsPartsCost) {
  PlanOptions options = {
      .stream = "pretrain:256K", .servers = 8, .tokens_per_rank = "64K", .model = "glm53-flash"};
  options.batches = 2;
  const PlanStudy study = study_plans(make_request(options));
  EXPECT_LE(study.ours.forward.max_over_mean, 1.02);
  EXPECT_GT(study.ours.forward.send_bytes_max, 0);
  EXPECT_TRUE(study.example.backward.plan.servers.empty());
  const std::string report = study_text(study);
  for (const char* part :
       {"index of 32 heads of 128, the best 512 pools of 4 tokens", "linear attention",
        "residual streams", "experts", "context_only", "states at each border of chunks"}) {
    EXPECT_NE(report.find(part), std::string::npos) << report << "\nlacks " << part;
  }
  EXPECT_EQ(report.find("backward\n  server"), std::string::npos) << report;
  EXPECT_EQ(explain_plan(study.example, study.request.planner).find("Backward"), std::string::npos);

  const Json json = study_json(study);
  EXPECT_FALSE(json.contains("backward"));
  // By hand: 11 layers score what the documents of the batch ask for, at 438 T, on eight ranks.
  double pools = 0;
  for (int32_t document = 0; document < study.example.layout.num_documents(); ++document) {
    pools +=
        document_work(study.request.target.model, study.example.layout.document_tokens(document))
            .scored_pools;
  }
  const double expected_s =
      study.ours.forward.max_over_mean * 11 * pools * 2 * 32 * 128 / 438e12 / 8;
  bool found = false;
  for (const Json& part : json["model"]["parts"]) {
    if (part["part"] != "index scoring") continue;
    found = true;
    EXPECT_NEAR(part["forward_s"].get<double>() / expected_s, 1, 1e-6);
    EXPECT_EQ(part["backward_s"].get<double>(), 0);
  }
  EXPECT_TRUE(found);

  options.baselines = {"zigzag"};
  EXPECT_NE(error_of([&] { make_request(options); }).find("core attention"), std::string::npos);
  options.baselines.clear();
  options.gpus_per_server = 8;
  EXPECT_NE(error_of([&] { make_request(options); }).find("--gpus-per-server"), std::string::npos);
}

TEST_F(PlanReport, EveryPresetIsPlanned) {
  for (const std::string& name : preset_names()) {
    PlanOptions options = small_stream();
    options.model = name;
    const PlanStudy study = study_plans(make_request(options));
    EXPECT_GT(study.ours.forward.makespan_s, 0) << name;
    EXPECT_NE(study_text(study).find("What a token keeps"), std::string::npos) << name;
    EXPECT_EQ(study.request.backward, study_json(study).contains("backward")) << name;
  }
}

// A run's planner weighs core attention; its scoring is planned as the run does.
TEST_F(PlanReport, RunOfAHybridPlansItsScoring) {
  const RunPlanning run{.model = preset_spec("glm53_flash_tiny"),
                        .value_bytes = 4,
                        .on_gpu = false,
                        .profile = "built-in",
                        .chunks = 2,
                        .token_shares = {1, 1},
                        .costs = alike_costs(2)};
  const auto packer = std::make_shared<Packer>(std::vector<int64_t>{4000, 300, 2000, 1500},
                                               PackOptions{.seed = 1, .micro_batch_tokens = 8192});
  const PlanStudy study = study_plans(make_run_request(run, packed_batches(packer, 1), {}));
  EXPECT_EQ(study.example.costs.forward.bytes.query_out, 4 * 33 * 4);
  const std::string report = study_text(study);
  EXPECT_NE(report.find("no measured rates"), std::string::npos) << report;
}

}  // namespace
}  // namespace longspan
