#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <iterator>
#include <set>

#include "base/error.h"
#include "base/random.h"
#include "config/config_docs.h"
#include "config/config_loader.h"
#include "formats/test_folder.h"

namespace longspan {
namespace {

const std::filesystem::path kRoot = LONGSPAN_SOURCE_DIR;

constexpr const char* kMinimal = "[model]\npreset = \"llama_tiny\"\n";

LoadedConfig parse(const std::string& extra, const std::vector<std::string>& overrides = {},
                   const Surroundings& around = {}) {
  return parse_run_config(kMinimal + extra, "run.toml", overrides, around);
}

// The message of the UserError that loading must end in.
std::string refusal(const std::string& extra, const std::vector<std::string>& overrides = {},
                    const Surroundings& around = {}) {
  try {
    parse(extra, overrides, around);
  } catch (const UserError& error) {
    return error.what();
  }
  ADD_FAILURE() << "accepted:\n" << extra;
  return "";
}

TEST(ConfigKeys, TableIsWellFormed) {
  std::set<std::string> names;
  for (const ConfigKey& key : config_keys()) {
    EXPECT_TRUE(names.insert(key.name).second) << key.name << " stands twice";
    EXPECT_TRUE(key.doc.ends_with('.')) << key.name;
    EXPECT_EQ(static_cast<bool>(key.automatic), !key.automatic_doc.empty()) << key.name;
    EXPECT_EQ(find_key(key.name), &key);
    RunConfig config;
    key.set(config, key.initial());
    EXPECT_EQ(key.get(config), key.initial()) << key.name;
  }
  EXPECT_EQ(find_key("optimizer.learning_rate"), nullptr);
}

TEST(ConfigKeys, DefaultsObeyTheirOwnRows) {
  // The file that spells out every default must load, and to the same values.
  const LoadedConfig defaults = parse("");
  const LoadedConfig again = parse_run_config(defaults.toml(), "defaults.toml");
  EXPECT_EQ(again.toml(), defaults.toml());
}

TEST(ConfigKeys, CommittedPageMatchesTheTable) {
  std::ifstream file(kRoot / "docs/configuration.md", std::ios::binary);
  const std::string page{std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
  EXPECT_EQ(page, config_docs()) << "run: write_config_docs docs/configuration.md";
}

TEST(ConfigLoader, ReadsValuesAndTheirOrigins) {
  const LoadedConfig loaded = parse(
      "[data]\ntrain = [\"a.txt\", \"b/*.txt\"]\nappend_end_of_document = false\n"
      "[data.fasta]\nmask_n_weight = 1\n[optimizer]\nlr = 2e-3\nbetas = [0.8, 0.9]\n",
      {"--batch.micro_batch_tokens=1_024", "--data.eval=c.txt", "--model.preset=1"});
  EXPECT_EQ(loaded.config.data.train, (std::vector<std::string>{"a.txt", "b/*.txt"}));
  EXPECT_FALSE(loaded.config.data.append_end_of_document);
  EXPECT_EQ(loaded.config.data.fasta.mask_n_weight, 1.0);
  EXPECT_EQ(loaded.config.optimizer.lr, 2e-3);
  EXPECT_EQ(loaded.config.optimizer.betas, (std::vector<double>{0.8, 0.9}));
  EXPECT_EQ(loaded.config.batch.micro_batch_tokens, 1024);
  EXPECT_EQ(loaded.config.data.eval, std::vector<std::string>{"c.txt"});
  EXPECT_EQ(loaded.config.model.preset, "1");
  EXPECT_EQ(loaded.setting("data.train").origin, "run.toml:4");
  EXPECT_EQ(loaded.setting("batch.micro_batch_tokens").origin, "command line");
  EXPECT_EQ(loaded.setting("optimizer.eps").origin, "default");
}

TEST(ConfigLoader, OverridesReadAsToml) {
  const LoadedConfig loaded = parse("[optimizer]\nlr = 2.0\n",
                                    {"--optimizer.lr=1", "--data.train=[\"x\", \"y\"]",
                                     "--optimizer.betas=[0, 0.5]", "--output.tensorboard=false"});
  EXPECT_EQ(loaded.config.optimizer.lr, 1.0);
  EXPECT_EQ(loaded.config.data.train, (std::vector<std::string>{"x", "y"}));
  EXPECT_EQ(loaded.config.optimizer.betas, (std::vector<double>{0.0, 0.5}));
  EXPECT_FALSE(loaded.config.output.tensorboard);
}

TEST(ConfigLoader, UnknownKeyNamesTheNearest) {
  EXPECT_EQ(refusal("[data.fasta]\n\nmask_n_weigth = 0\n"),
            "run.toml:5: unknown key data.fasta.mask_n_weigth; nearest: data.fasta.mask_n_weight "
            "(float, default 0)");
  EXPECT_EQ(refusal("", {"--batch.micro_batch_toknes=3"}),
            "--batch.micro_batch_toknes=3: unknown key batch.micro_batch_toknes; nearest: "
            "batch.micro_batch_tokens (integer, default 65536)");
  EXPECT_NE(refusal("[train]\nlr = 1.0\n").find("nearest: optimizer.lr"), std::string::npos);
  EXPECT_EQ(refusal("[optimiser]\n"),
            "run.toml:3: unknown section [optimiser]; nearest: [optimizer]");
  EXPECT_NE(refusal("[optimizer.lr]\nx = 1\n").find("unknown key optimizer.lr.x"),
            std::string::npos);
  EXPECT_NE(refusal("[[data]]\ntrain = []\n").find("unknown key data"), std::string::npos);
}

TEST(ConfigLoader, NamesOfOtherProgramsLeadToTheKey) {
  EXPECT_EQ(refusal("", {"--optimizer.learning_rate=3"}),
            "--optimizer.learning_rate=3: unknown key optimizer.learning_rate; nearest: "
            "optimizer.lr (float, default 3e-04)");
  std::set<std::string> names;
  for (const ConfigKey& key : config_keys()) {
    const std::string section = key.name.substr(0, key.name.rfind('.') + 1);
    for (const std::string& other : key.other_names) {
      SCOPED_TRACE(other);
      EXPECT_TRUE(names.insert(other).second) << "leads to two keys";
      EXPECT_EQ(find_key(section + other), nullptr);
      for (const std::string& written : {section + other, section + other + "s"}) {
        ASSERT_NE(nearest_key(written), nullptr);
        EXPECT_EQ(nearest_key(written)->name, key.name);
      }
    }
  }
  for (const char* word : {"train.learning_rate", "learning_rate", "trainer.max_lr"}) {
    EXPECT_EQ(nearest_key(word)->name, "optimizer.lr") << word;
  }
}

TEST(ConfigLoader, ANameNearToNoneGetsTheListInstead) {
  EXPECT_EQ(nearest_key("batch.frobnicate"), nullptr);
  EXPECT_EQ(refusal("[batch]\nfrobnicate = 1\n"),
            "run.toml:4: unknown key batch.frobnicate; [batch] holds micro_batch_tokens, "
            "micro_batches_per_step");
  const std::string message = refusal("", {"--frobnicate=1"});
  for (const char* section : {"[model]", "[data.fasta]", "[run]", "docs/configuration.md"}) {
    EXPECT_NE(message.find(section), std::string::npos) << message;
  }
}

// Property: one wrong, missing, doubled or swapped letter in any name finds that name again.
TEST(ConfigLoader, OneSlipFindsTheKey) {
  const uint64_t seed = 7;
  SCOPED_TRACE(text("seed ", seed));
  RandomStream random(seed, "slips");
  int64_t found = 0;
  int64_t slips = 0;
  for (const ConfigKey& key : config_keys()) {
    for (int64_t trial = 0; trial < 8; ++trial) {
      std::string name = key.name;
      const auto at = static_cast<size_t>(random.below(name.size() - 1));
      if (trial % 4 == 0) name[at] = 'q';
      if (trial % 4 == 1) name.erase(at, 1);
      if (trial % 4 == 2) name.insert(at, 1, name[at]);
      if (trial % 4 == 3) std::swap(name[at], name[at + 1]);
      if (find_key(name) != nullptr) continue;
      ++slips;
      const ConfigKey* nearest = nearest_key(name);
      found += nearest != nullptr && nearest->name == key.name ? 1 : 0;
    }
  }
  // Names that differ by one letter (data.train against a slip of it) can tie; few may.
  EXPECT_GE(found, slips - slips / 50);
  EXPECT_GT(slips, 300);
}

TEST(ConfigLoader, RefusesWrongTypes) {
  EXPECT_EQ(refusal("[batch]\nmicro_batch_tokens = \"64k\"\n"),
            "run.toml:4: batch.micro_batch_tokens is a string, '64k'; it takes: integer (tokens)");
  EXPECT_EQ(refusal("[layout]\nranks = 1.5\n"),
            "run.toml:4: layout.ranks is a float, 1.5; it takes: integer or \"auto\"");
  EXPECT_EQ(refusal("[data]\neval = \"a.txt\"\n"),
            "run.toml:4: data.eval is a string, 'a.txt'; it takes: list of strings; write "
            "[\"a.txt\"], quotes included");
  for (const char* wrong :
       {"[batch]\nmicro_batch_tokens = 1e3\n", "[data]\ntrain = \"a.txt\"\n",
        "[data]\ntrain = [1]\n", "[output]\ntensorboard = 1\n", "[optimizer]\nlr = true\n",
        "[optimizer]\nlr = 2020-01-01\n", "[optimizer]\nlr = \"auto\"\n",
        "[optimizer]\nbetas = [\"a\", 1]\n", "[model]\nx = {}\n"}) {
    refusal(wrong);
  }
}

TEST(ConfigLoader, RefusesValuesOutOfRange) {
  EXPECT_EQ(refusal("[batch]\nmicro_batch_tokens = 0\n"),
            "run.toml:4: batch.micro_batch_tokens = 0; it must be 1 .. 1099511627776 tokens");
  EXPECT_EQ(refusal("", {"--data.overlong=cut"}),
            "--data.overlong=cut: data.overlong = 'cut'; it must be one of \"error\" \"skip\" "
            "\"split\"");
  for (const char* wrong :
       {"--optimizer.lr=0", "--optimizer.lr=-1", "--optimizer.lr=nan", "--optimizer.lr=inf",
        "--optimizer.betas=[0.9, 1.0]", "--optimizer.betas=[0.9]", "--model.seed=-1",
        "--attention.epsilon=1.5", "--layout.chunks=9223372036854775808",
        "--layout.chunks=", "--run.stall_timeout_s=0", "--layout.stored_mode=all"}) {
    refusal("", {wrong});
  }
}

TEST(ConfigLoader, RefusesMalformedInput) {
  EXPECT_NE(refusal("[data\n").find("run.toml:3:"), std::string::npos);
  EXPECT_NE(refusal("[data]\nseed = 1\nseed = 2\n").find("not valid TOML"), std::string::npos);
  EXPECT_NE(refusal("", {"optimizer.lr=1"}).find("--section.key=value"), std::string::npos);
  EXPECT_NE(refusal("", {"--optimizer.lr"}).find("--section.key=value"), std::string::npos);
  EXPECT_NE(refusal("", {"--model.path=\xff"}).find("UTF-8"), std::string::npos);
  EXPECT_NE(refusal("", {"--optimizer.lr=1\nsteps=2"}).find("takes: float; it has a line break"),
            std::string::npos);
  EXPECT_THROW(load_run_config("no/such/file.toml"), UserError);
}

TEST(ConfigLoader, AFolderIsAnsweredByWhatToGiveInstead) {
  const TestFolder folder;
  const auto refused = [&](const std::filesystem::path& path) -> std::string {
    try {
      load_run_config(path);
    } catch (const UserError& error) {
      return error.what();
    }
    return "accepted";
  };
  const std::filesystem::path run = folder.path() / "run";
  std::filesystem::create_directories(run / "step-2");
  EXPECT_NE(refused(run).find("give a TOML file"), std::string::npos) << refused(run);
  folder.write("run/config.toml", "");
  folder.write("run/step-2/manifest.json", "{}");
  const std::string config = (run / "config.toml").string();
  EXPECT_NE(refused(run).find("folder of a run; give the run's configuration, " + config),
            std::string::npos)
      << refused(run);
  const std::string checkpoint = refused(run / "step-2");
  EXPECT_NE(checkpoint.find("it is a checkpoint"), std::string::npos) << checkpoint;
  EXPECT_NE(checkpoint.find(config), std::string::npos) << checkpoint;
  std::filesystem::create_directories(folder.path() / "model");
  folder.write("model/config.json", "{}");
  EXPECT_NE(refused(folder.path() / "model").find("model.path"), std::string::npos);
}

TEST(ConfigLoader, NumbersThatDoNotFitAreNoWords) {
  for (const char* written : {"99999999999999999999", "-99999999999999999999", "1e999", "12x"}) {
    const std::string refused = refusal("", {text("--optimizer.steps=", written)});
    EXPECT_NE(refused.find("optimizer.steps takes: integer"), std::string::npos) << refused;
    EXPECT_EQ(refused.find("string"), std::string::npos) << refused;
  }
  EXPECT_NE(refusal("", {"--optimizer.betas=[0.9,1e999]"}).find("takes: list of floats"),
            std::string::npos);
  EXPECT_NE(refusal("[optimizer]\nsteps = 99999999999999999999\n").find("64 bits"),
            std::string::npos);
}

TEST(ConfigLoader, AnOverrideGivenTwiceIsRefused) {
  const std::string refused =
      refusal("", {"--optimizer.steps=3", "--data.seed=1", "--optimizer.steps=4"});
  EXPECT_EQ(refused,
            "--optimizer.steps=4: optimizer.steps is given twice, before as --optimizer.steps=3; "
            "leave one of them out");
}

TEST(ConfigLoader, NoValueHoldsANul) {
  EXPECT_NE(refusal("[data]\ntrain = [\"a\", \"b\\u0000c\"]\n").find("data.train holds a NUL"),
            std::string::npos);
  EXPECT_NE(refusal("[output]\nfolder = \"b\\u0000c\"\n").find("output.folder holds a NUL"),
            std::string::npos);
}

TEST(ConfigLoader, AnEmptyFileIsNamed) {
  const TestFolder folder;
  try {
    load_run_config(folder.write("empty.txt", ""));
    ADD_FAILURE() << "no error";
  } catch (const UserError& error) {
    EXPECT_NE(std::string(error.what()).find("empty.txt: it is empty"), std::string::npos)
        << error.what();
  }
}

TEST(ConfigLoader, ErrorsBelowAKeyNameIt) {
  const LoadedConfig loaded = parse("[output]\nfolder = \"x\"\n");
  EXPECT_EQ(naming_key(loaded, "output.folder", [] { return 5; }), 5);
  try {
    naming_key(loaded, "output.folder", []() -> int { throw UserError("no room"); });
    ADD_FAILURE() << "no error";
  } catch (const UserError& error) {
    EXPECT_STREQ(error.what(), "output.folder = \"x\" (run.toml:4): no room");
  }
  try {
    naming_key(parse("[data]\ntrain = [\"x\"]\n"), "data.train",
               []() -> int { throw UserError("x: no file"); });
    ADD_FAILURE() << "no error";
  } catch (const UserError& error) {
    EXPECT_STREQ(error.what(), "data.train (run.toml:4): x: no file");
  }
}

TEST(ConfigLoader, ShortTextHoldsWhatSomebodyChose) {
  const LoadedConfig loaded =
      parse("[optimizer]\nlr = 3e-4\nsteps = 7\n[layout]\nranks = 1\n", {"--data.seed=4"}, {0, 2});
  const std::string changed = loaded.changed_toml();
  for (const char* shown : {"preset = ", "steps = 7 ", "ranks = 1 ", "seed = 4 ", "# command line"})
    EXPECT_NE(changed.find(shown), std::string::npos) << shown << changed;
  for (const char* left_out : {"lr = ", "dtype", "# default", "# auto", "[output]"})
    EXPECT_EQ(changed.find(left_out), std::string::npos) << left_out << changed;
}

TEST(ConfigLoader, RefusesContradictions) {
  const std::vector<std::pair<std::string, std::string>> cases = {
      {"[layout]\nchunks = 2\nband = 4\n",
       "layout.band = 4 (run.toml:5) is more than layout.chunks = 2 (run.toml:4)"},
      {"[layout]\nchunks = 60_000\n[batch]\nmicro_batch_tokens = 50_000\n",
       "is more than batch.micro_batch_tokens = 50000"},
      {"[layout]\nranks = 4\nshard_group = 3\n", "does not divide"},
      {"[layout]\ninner_mode = \"keep\"\n", "has no effect"},
      {"[layout]\nstored_mode = \"context_only\"\ninner_mode = \"none\"\n", "inner_mode"},
      {"[attention]\nservers = \"dedicated\"\n", "say how many"},
      {"[attention]\nservers = \"in-place\"\ndedicated = 1\n", "attention.dedicated = 1"},
      {"[layout]\nranks = 2\n[attention]\ndedicated = 2\n", "leaves no rank"},
      {"[optimizer]\nsteps = 10\nwarmup_steps = 11\n", "is more than"},
      {"[optimizer]\nsteps = 10\nwarmup_steps = 5\ndecay_steps = 6\n", "together more"},
      {"[optimizer]\nschedule = \"constant\"\ndecay_steps = 6\n", "no effect"},
      {"[optimizer]\nschedule = \"constant\"\nmin_lr_ratio = 0.5\n", "no effect"},
      {"[output]\neval_every = 5\n", "data.eval"},
      {"[output]\nfolder = \"\"\n", "output.folder"},
      {"[data]\nformat = \"text\"\ntokenizer = \"none\"\n", "no token ids"},
      {"[data]\nformat = \"text\"\nfasta.max_n_run = 5\n", "no effect"},
  };
  for (const auto& [extra, expected] : cases) {
    EXPECT_NE(refusal(extra).find(expected), std::string::npos) << refusal(extra);
  }
  EXPECT_NE(refusal("", {"--model.path=models/x"}).find("set one of them"), std::string::npos);
  EXPECT_NE(refusal("", {"--model.init=weights"}).find("no weights"), std::string::npos);
  EXPECT_NE(refusal("", {"--model.preset="}).find("no model"), std::string::npos);
  EXPECT_NE(refusal("[layout]\nranks = 2\n", {}, {4, 8}).find("launcher started 4"),
            std::string::npos);
}

// What a machine cannot carry; the configuration of another machine can be read all the same.
TEST(ConfigLoader, RanksAndThreadsGoByTheMachine) {
  const auto refused = [](int64_t ranks, int64_t threads, const Surroundings& around) {
    try {
      parse("", {text("--layout.ranks=", ranks), text("--layout.threads_per_rank=", threads)},
            around);
    } catch (const UserError&) {
      return true;
    }
    return false;
  };
  EXPECT_FALSE(refused(1024, 1, {0, 2}));
  EXPECT_TRUE(refused(1025, 1, {0, 2}));
  EXPECT_FALSE(refused(1025, 1, {1025, 2}));
  EXPECT_FALSE(refused(1025, 1, {}));
  EXPECT_FALSE(refused(1, 32, {0, 2}));
  EXPECT_TRUE(refused(1, 33, {0, 2}));
  EXPECT_FALSE(refused(4, 8, {0, 2}));
  EXPECT_TRUE(refused(4, 9, {0, 2}));
  EXPECT_FALSE(refused(4, 32, {4, 2}));
  EXPECT_TRUE(refused(4, 33, {4, 2}));
  EXPECT_FALSE(refused(4, 1000, {}));
}

TEST(ConfigLoader, AutoChoosesAndSaysWhy) {
  const LoadedConfig launched = parse("", {"--attention.dedicated=1"}, {4, 16});
  EXPECT_EQ(launched.config.layout.ranks, 4);
  EXPECT_EQ(launched.config.layout.shard_group, 4);
  EXPECT_EQ(launched.config.layout.threads_per_rank, 16);
  EXPECT_EQ(launched.config.attention.servers, "dedicated");
  EXPECT_EQ(launched.setting("layout.ranks").origin, "auto: the launcher started 4 ranks");

  const LoadedConfig threads = parse(
      "[layout]\nranks = 4\nchunks = 3\nstored_mode = \"context_only\"\nband = \"auto\"\n"
      "[optimizer]\nschedule = \"wsd\"\nsteps = 500\n",
      {}, {0, 2});
  EXPECT_EQ(threads.config.layout.band, 3);
  EXPECT_EQ(threads.config.layout.inner_mode, "layer_inputs_attention");
  EXPECT_EQ(threads.config.layout.threads_per_rank, 1);
  EXPECT_EQ(threads.config.optimizer.warmup_steps, 10);
  EXPECT_EQ(threads.config.optimizer.decay_steps, 100);
  EXPECT_EQ(threads.config.attention.servers, "in-place");
}

TEST(ConfigLoader, PrintedTextLoadsToTheSame) {
  const LoadedConfig loaded = parse(
      "[data]\ntrain = [\"tab\\there\", \"quote\\\" \\\\ \\u0001 \u00e9\"]\n"
      "[layout]\nranks = 6\nchunks = 4\nstored_mode = \"context_only\"\n"
      "[attention]\ndedicated = 2\nepsilon = 0\n[optimizer]\nlr = 1.25e-5\n",
      {"--optimizer.eps=1e-15", "--layout.threads_per_rank=3"}, {0, 12});
  const LoadedConfig plain = parse_run_config(loaded.toml(), "saved.toml");
  EXPECT_EQ(plain.toml(), loaded.toml());
  EXPECT_EQ(plain.hash(), loaded.hash());
  EXPECT_EQ(plain.config.data.train, loaded.config.data.train);
  const LoadedConfig annotated = parse_run_config(loaded.annotated_toml(), "printed.toml");
  EXPECT_EQ(annotated.toml(), loaded.toml());
  EXPECT_NE(loaded.annotated_toml().find("# command line"), std::string::npos);
  EXPECT_NE(loaded.annotated_toml().find("# auto: "), std::string::npos);
  EXPECT_NE(loaded.annotated_toml().find("# run.toml:4"), std::string::npos);

  EXPECT_EQ(loaded.hash().size(), 16U);
  EXPECT_NE(parse("", {"--optimizer.lr=1"}).hash(), parse("").hash());
}

TEST(ConfigLoader, SavedTextAndHashAreThoseOfAnyMachine) {
  const LoadedConfig small = parse("", {}, {0, 2});
  const LoadedConfig large = parse("", {}, {0, 64});
  EXPECT_EQ(large.config.layout.threads_per_rank, 64);
  EXPECT_EQ(small.toml(), large.toml());
  EXPECT_EQ(small.hash(), large.hash());
  EXPECT_NE(large.toml().find("threads_per_rank = \"auto\"\n"), std::string::npos);
  EXPECT_NE(large.annotated_toml().find("threads_per_rank = 64 "), std::string::npos);
  // What was asked for counts.
  EXPECT_NE(parse("", {"--layout.threads_per_rank=2"}, {0, 2}).hash(), small.hash());
}

TEST(ConfigLoader, TrainingNeedsDocuments) {
  EXPECT_THROW(require_training_data(parse("")), UserError);
  EXPECT_NO_THROW(require_training_data(parse("", {"--data.train=a.txt"})));
}

TEST(ConfigPresets, EveryFileLoads) {
  int64_t files = 0;
  for (const auto& entry : std::filesystem::directory_iterator(kRoot / "configs")) {
    if (entry.path().extension() != ".toml") continue;
    ++files;
    const LoadedConfig loaded = load_run_config(entry.path());
    EXPECT_NO_THROW(require_training_data(loaded)) << entry.path();
  }
  EXPECT_GE(files, 2);
}

}  // namespace
}  // namespace longspan
