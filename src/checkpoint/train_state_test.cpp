#include "checkpoint/train_state.h"

#include <gtest/gtest.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <cmath>
#include <deque>
#include <fstream>
#include <functional>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "base/random.h"
#include "checkpoint/agreement.h"
#include "checkpoint/export_checkpoint.h"
#include "checkpoint/step_folder.h"
#include "comm/run_ranks.h"
#include "formats/test_folder.h"
#include "layout/parameter_layout.h"
#include "spec/presets.h"

namespace longspan {
namespace {

std::vector<Parameter> test_parameters() {
  return {{.name = "a", .shape = {7, 3}, .unit = 0},
          {.name = "b", .shape = {1000}, .unit = 1},
          {.name = "c", .shape = {13, 5}, .unit = 1},
          {.name = "d", .shape = {3}, .unit = 2}};
}

ParameterLayout layout_of(const std::vector<Parameter>& parameters, int64_t ranks,
                          int64_t shard_group) {
  std::vector<ParameterExtent> extents;
  for (const Parameter& parameter : parameters) {
    extents.push_back({parameter.unit, parameter.elements()});
  }
  return ParameterLayout(extents, ranks, shard_group);
}

// The value of one element of one array, whoever holds it.
double element_value(const std::string& array, int64_t element, int64_t step) {
  RandomStream random(static_cast<uint64_t>(step), array, static_cast<uint64_t>(element));
  return random.normal();
}

// What a rank owns of all arrays, padding left out.
template <typename Real>
struct OwnedArrays {
  OwnedArrays(const std::vector<Parameter>& parameters, int64_t rank, int64_t ranks,
              int64_t shard_group, int64_t step) {
    const ParameterLayout layout = layout_of(parameters, ranks, shard_group);
    for (int64_t unit = 0; unit < layout.num_units(); ++unit) {
      const Range used{0, layout.used_elements(unit)};
      const Range owned = intersect(layout.owned(unit, rank), used);
      for (const char* kind : kStateKinds) {
        const std::string name = state_array_name(unit, kind);
        std::vector<Real>& stored = values.emplace_back();
        for (int64_t e = owned.begin; e < owned.end; ++e) {
          stored.push_back(static_cast<Real>(element_value(name, e, step)));
        }
        arrays.push_back({name, used.size(), owned, std::span(stored)});
      }
    }
  }

  std::deque<std::vector<Real>> values;
  std::vector<StateArray> arrays;
};

SaveRequest request_of(const std::vector<StateArray>& arrays, int64_t step, int64_t ranks,
                       int64_t shard_group) {
  return {.progress = {.step = step,
                       .updates = step - 1,
                       .tokens_seen = 1000 * step,
                       .documents_seen = 7,
                       .cursor = {2, 5},
                       .data_files = {{"docs/a.txt", 123, 0xfedcba9876543210ULL}}},
          .run = {.config_toml = "[model]\npreset = \"x\"\n",
                  .engine_version = "0.1.0",
                  .engine_commit = "abc",
                  .ranks = ranks,
                  .shard_group = shard_group,
                  .attention_profile = "built-in"},
          .parameters = parameter_records(test_parameters()),
          .arrays = arrays,
          .files = {{"model/config.json", "{}"}}};
}

template <typename Real>
void save(const std::filesystem::path& run_folder, int64_t step, int ranks, int64_t shard_group) {
  run_ranks(ranks, {.stall_timeout_s = 60}, [&](Communicator& comm) {
    const OwnedArrays<Real> owned(test_parameters(), comm.rank(), ranks, shard_group, step);
    save_train_state(comm, run_folder, request_of(owned.arrays, step, ranks, shard_group));
  });
}

// Every rank of another layout finds its own elements, bit for bit.
template <typename Real>
void expect_loads(const std::filesystem::path& run_folder, int64_t step, int ranks,
                  int64_t shard_group) {
  for (int rank = 0; rank < ranks; ++rank) {
    SavedState saved(resolve_checkpoint(run_folder));
    saved.check_model(test_parameters(), std::is_same_v<Real, double>);
    const OwnedArrays<Real> expected(test_parameters(), rank, ranks, shard_group, step);
    for (const StateArray& array : expected.arrays) {
      std::vector<Real> loaded(static_cast<size_t>(array.owned.size()));
      saved.read(array.name, array.owned, std::span(loaded));
      const auto wanted = std::get<std::span<Real>>(array.values);
      ASSERT_TRUE(std::equal(loaded.begin(), loaded.end(), wanted.begin(), wanted.end()))
          << array.name << " of rank " << rank << " of " << ranks;
    }
  }
}

std::string message_of(const std::function<void()>& action) {
  try {
    action();
  } catch (const UserError& error) {
    return error.what();
  }
  return "no error";
}

void expect_parts(const std::string& message, const std::vector<std::string>& parts) {
  for (const std::string& part : parts) {
    EXPECT_NE(message.find(part), std::string::npos) << "'" << part << "' not in: " << message;
  }
}

TEST(TrainState, LoadsOnAnyNumberOfRanksWithTheSameBits) {
  struct Mesh {
    int ranks;
    int64_t shard_group;
  };
  const std::vector<Mesh> meshes = {{1, 1}, {2, 1}, {3, 3}, {4, 2}, {8, 4}};
  for (const Mesh& from : meshes) {
    const TestFolder test;
    save<float>(test.path(), 5, from.ranks, from.shard_group);
    for (const Mesh& to : meshes) {
      SCOPED_TRACE(text(from.ranks, "/", from.shard_group, " -> ", to.ranks, "/", to.shard_group));
      expect_loads<float>(test.path(), 5, to.ranks, to.shard_group);
    }
  }
  const TestFolder test;
  save<double>(test.path(), 5, 4, 2);
  expect_loads<double>(test.path(), 5, 3, 1);
}

TEST(TrainState, ManifestKeepsWhatItWasGiven) {
  const TestFolder test;
  save<float>(test.path(), 5, 4, 2);
  const Manifest manifest = read_manifest(test / "step-5");
  const SaveRequest request = request_of({}, 5, 4, 2);
  EXPECT_EQ(manifest.progress, request.progress);
  EXPECT_EQ(manifest.run, request.run);
  EXPECT_EQ(manifest.parameters, request.parameters);
  EXPECT_EQ(manifest.parameters[2], (ParameterRecord{"c", {13, 5}, 1, 1000}));
  EXPECT_EQ(parse_manifest(manifest_json(manifest), "again"), manifest);
  EXPECT_EQ(read_text(test / "step-5/model/config.json"), "{}");
}

TEST(TrainState, SameStateGivesTheSameFiles) {
  const TestFolder test;
  save<float>(test / "a", 5, 2, 2);
  save<float>(test / "b", 5, 2, 2);
  for (const char* name :
       {"manifest.json", "rank-00000-of-00002.safetensors", "rank-00001-of-00002.safetensors"}) {
    EXPECT_EQ(read_text(test / "a/step-5" / name), read_text(test / "b/step-5" / name)) << name;
  }
}

TEST(TrainState, KeepsTheLatestAndDoesNotRewriteACompleteStep) {
  const TestFolder test;
  for (const int64_t step : {1, 2, 3}) save<float>(test.path(), step, 2, 1);
  EXPECT_EQ(complete_steps(test.path()), (std::vector<int64_t>{2, 3}));
  const auto written = std::filesystem::last_write_time(test / "step-3/manifest.json");
  save<float>(test.path(), 3, 2, 1);
  EXPECT_EQ(std::filesystem::last_write_time(test / "step-3/manifest.json"), written);
}

void change_file(const std::filesystem::path& path,
                 const std::function<void(std::string&)>& change) {
  std::string content = read_text(path);
  change(content);
  std::ofstream(path, std::ios::binary) << content;
}

TEST(TrainState, EveryDamageIsAUserErrorThatNamesTheFile) {
  const std::string rank_file = "rank-00001-of-00002.safetensors";
  struct Damage {
    std::string file;
    std::function<void(std::string&)> change;
    std::string word;
  };
  const auto replace = [](const std::string& from, const std::string& to) {
    return [=](std::string& content) { content.replace(content.find(from), from.size(), to); };
  };
  const std::vector<Damage> damages = {
      {rank_file, [](std::string& c) { c.back() = static_cast<char>(c.back() ^ 1); }, "checksum"},
      {rank_file, [](std::string& c) { c.resize(c.size() - 4); }, ""},
      {rank_file, [](std::string& c) { c.clear(); }, ""},
      {"manifest.json", [](std::string& c) { c.resize(c.size() / 2); }, "JSON"},
      {"manifest.json", replace("\"tokens_seen\"", "\"tokens_sean\""), "tokens_seen"},
      {"manifest.json", replace("\"format_version\": 1", "\"format_version\": 2"), "version"},
      {"manifest.json", replace("preset", "praset"), "config_hash"},
      {"manifest.json", replace("\"elements\": 21", "\"elements\": 22"), "unit-0000"},
      {"manifest.json", replace("\"step\": 5", "\"step\": -5"), "below 0"},
      {"manifest.json", replace("unit-0001.weights", "unit-0009.weights"), "unit-0001.weights"},
      {"manifest.json", replace("rank-00000", "../rank-00000"), "file name"},
  };
  for (const Damage& damage : damages) {
    const TestFolder test;
    save<float>(test.path(), 5, 2, 1);
    change_file(test / "step-5" / damage.file, damage.change);
    const std::string message = message_of([&] { expect_loads<float>(test.path(), 5, 2, 1); });
    expect_parts(message, {damage.file, damage.word});
  }
  const TestFolder test;
  save<float>(test.path(), 5, 2, 1);
  std::filesystem::remove(test / "step-5" / rank_file);
  expect_parts(message_of([&] { expect_loads<float>(test.path(), 5, 2, 1); }), {rank_file});
}

TEST(TrainState, AnotherModelOrFloatTypeIsRefused) {
  const TestFolder test;
  save<float>(test.path(), 5, 2, 1);
  const SavedState saved(test / "step-5");
  expect_parts(message_of([&] { saved.check_model(test_parameters(), true); }),
               {"F32", "F64", "model.dtype"});
  auto parameters = test_parameters();
  parameters[1].shape = {999};
  expect_parts(message_of([&] { saved.check_model(parameters, false); }), {"another model", "'b'"});
  parameters.pop_back();
  parameters[1].shape = {1000};
  expect_parts(message_of([&] { saved.check_model(parameters, false); }), {"4 parameters"});
}

// The size of files is limited instead of the disk's; both fail in write().
TEST(TrainState, AFullDiskLeavesTheOlderCheckpointAndNothingElse) {
  const TestFolder test;
  save<float>(test.path(), 1, 2, 1);
  rlimit before{};
  ASSERT_EQ(::getrlimit(RLIMIT_FSIZE, &before), 0);
  const auto old_handler = ::signal(SIGXFSZ, SIG_IGN);
  rlimit small = before;
  small.rlim_cur = 2000;
  ASSERT_EQ(::setrlimit(RLIMIT_FSIZE, &small), 0);
  std::vector<std::string> messages(2);
  run_ranks(2, {.stall_timeout_s = 60}, [&](Communicator& comm) {
    const OwnedArrays<float> owned(test_parameters(), comm.rank(), 2, 1, 2);
    messages[static_cast<size_t>(comm.rank())] =
        message_of([&] { save_train_state(comm, test.path(), request_of(owned.arrays, 2, 2, 1)); });
  });
  ASSERT_EQ(::setrlimit(RLIMIT_FSIZE, &before), 0);
  ::signal(SIGXFSZ, old_handler);
  expect_parts(messages[0], {"step 2", "rank 0", ".safetensors", "earlier checkpoints"});
  EXPECT_EQ(messages[0], messages[1]);
  EXPECT_EQ(complete_steps(test.path()), (std::vector<int64_t>{1}));
  EXPECT_FALSE(std::filesystem::exists(test / "step-2.partial"));
  expect_loads<float>(test.path(), 1, 2, 1);
  save<float>(test.path(), 2, 2, 1);
  expect_loads<float>(test.path(), 2, 2, 1);
}

bool has_leftover(const std::filesystem::path& run_folder) {
  for (const auto& entry : std::filesystem::directory_iterator(run_folder)) {
    if (!std::filesystem::exists(entry.path() / "COMPLETE")) return true;
  }
  return false;
}

// Processes that save step after step are killed at random moments, until that has hit enough
// saves: the latest marked checkpoint is whole each time, and the next process goes on from there.
TEST(TrainState, AKilledSaveNeverShows) {
  const TestFolder test;
  RandomStream random(20, "kill times");
  const auto start = std::chrono::steady_clock::now();
  save<float>(test.path(), 1, 2, 1);
  const std::chrono::duration<double, std::micro> save_us =
      std::chrono::steady_clock::now() - start;
  int64_t last_seen = 1;
  int hits = 0;
  for (int round = 0; round < 100 && (hits < 5 || last_seen < 5); ++round) {
    const pid_t child = ::fork();
    ASSERT_GE(child, 0);
    if (child == 0) {
      for (int64_t step = last_seen + 1;; ++step) save<float>(test.path(), step, 2, 1);
    }
    // Longer and longer, so that a machine that has become slower finishes saves too.
    ::usleep(static_cast<useconds_t>((2 + round) * random.uniform() * save_us.count()));
    ::kill(child, SIGKILL);
    int status = 0;
    ASSERT_EQ(::waitpid(child, &status, 0), child);
    ASSERT_TRUE(WIFSIGNALED(status)) << "the child ended by itself, status " << status;
    hits += has_leftover(test.path());
    ASSERT_GE(latest_step(test.path()), last_seen);
    last_seen = *latest_step(test.path());
    expect_loads<float>(test.path(), last_seen, 3, 1);
  }
  EXPECT_GE(hits, 5) << "no save was ever interrupted";
  EXPECT_GE(last_seen, 5) << "no save was ever finished";
}

TEST(Agreement, TheLowestFailingRanksErrorIsEveryonesError) {
  std::vector<std::string> messages(4);
  run_ranks(4, {}, [&](Communicator& comm) {
    messages[static_cast<size_t>(comm.rank())] = message_of([&] {
      agree(comm, "test", [&] {
        if (comm.rank() % 2 == 1) throw UserError(text("disk of ", comm.rank()));
      });
    });
    EXPECT_NO_THROW(agree(comm, "test", [] {}));
  });
  for (const std::string& message : messages) EXPECT_EQ(message, "rank 1: disk of 1");
}

TEST(ExportCheckpoint, WritesTheWeightsOfAnyMesh) {
  const TestFolder test;
  test.write("source/tokenizer.json", "{}");
  ModelSpec spec = preset_spec("llama_tiny");
  spec.num_layers = 1;
  spec.vocab_size = 11;
  const ParameterTable table(spec);
  const std::vector<Parameter>& parameters = table.parameters();
  run_ranks(4, {}, [&](Communicator& comm) {
    const OwnedArrays<float> owned(parameters, comm.rank(), 4, 2, 9);
    SaveRequest request = request_of(owned.arrays, 9, 4, 2);
    request.parameters = parameter_records(parameters);
    request.files = model_files(spec, test / "source");
    save_train_state(comm, test / "run", request);
  });
  export_checkpoint(resolve_checkpoint(test / "run"), test / "out", {});
  EXPECT_EQ(read_text(test / "out/tokenizer.json"), "{}");
  const HfWeights weights(test / "out", spec, parameters);
  const std::vector<ParameterRecord> records = parameter_records(parameters);
  for (size_t id = 0; id < parameters.size(); ++id) {
    std::vector<float> values(static_cast<size_t>(parameters[id].elements()));
    weights.read(static_cast<int64_t>(id), {0, std::ssize(values)}, std::span(values));
    const std::string array = state_array_name(records[id].unit, "weights");
    for (size_t e = 0; e < values.size(); e += 97) {
      ASSERT_EQ(values[e], static_cast<float>(element_value(
                               array, records[id].begin + static_cast<int64_t>(e), 9)));
    }
  }
}

// A model with experts saved by an expert group, which began with a release that holds more than
// the parameters.
TEST(ExportCheckpoint, ExpertsAndCarriedTensors) {
  const TestFolder test;
  ModelSpec spec = preset_spec("glm53_flash_tiny");
  spec.vocab_size = 11;
  const TensorDescription image{"model.visual.pos_embed.weight", StoredDtype::kBF16, {2}};
  std::filesystem::create_directories(test / "release");
  SafetensorsWriter release(test / "release/model.safetensors", {image});
  release.write(image.name, std::vector<std::byte>(4, std::byte{9}));
  release.finish();
  for (const int64_t group : {1, 4}) {
    SCOPED_TRACE(text("expert group ", group));
    const ParameterTable table(spec, group);
    const std::vector<Parameter>& parameters = table.parameters();
    const auto run = test / text("run", group);
    run_ranks(2, {}, [&](Communicator& comm) {
      const OwnedArrays<float> owned(parameters, comm.rank(), 2, 2, 9);
      SaveRequest request = request_of(owned.arrays, 9, 2, 2);
      request.parameters = parameter_records(parameters);
      request.files = model_files(spec, {}, test / "release");
      save_train_state(comm, run, request);
    });
    export_checkpoint(resolve_checkpoint(run), test / text("out", group), {});
    EXPECT_EQ(SafetensorsSet(test / text("out", group)).tensor(image.name).bytes[3], std::byte{9});
    const HfWeights weights(test / text("out", group), spec, parameters);
    const std::vector<ParameterRecord> records = parameter_records(parameters);
    for (size_t id = 0; id < parameters.size(); id += 5) {
      std::vector<float> first(1);
      weights.read(static_cast<int64_t>(id), {0, 1}, std::span(first));
      const std::string array = state_array_name(records[id].unit, "weights");
      EXPECT_EQ(first[0], static_cast<float>(element_value(array, records[id].begin, 9)))
          << parameters[id].name;
    }
  }
  std::filesystem::rename(test / "release", test / "elsewhere");
  const auto export_again = [&](HfExportOptions options) {
    export_checkpoint(resolve_checkpoint(test / "run1"), test / "again", std::move(options));
  };
  EXPECT_THROW(export_again({}), UserError);
  EXPECT_FALSE(std::filesystem::exists(test / "again"));
  export_again({.carried_from = test / "elsewhere"});
  EXPECT_TRUE(SafetensorsSet(test / "again").contains(image.name));
}

}  // namespace
}  // namespace longspan
