// The typed run configuration: every choice a user can make, as one value.
//
//   const LoadedConfig loaded = load_run_config("run.toml", {"--batch.micro_batch_tokens=131072"});
//   train(loaded.config);
//
// The path of a field is the name of its key: `config.data.fasta.max_n_run` is
// `data.fasta.max_n_run` in the file and on the command line. config/keys.cpp holds, beside each
// name, its range, unit and one line of documentation; the initial values below are the defaults,
// except for keys whose default is "auto": those hold a value that works for one rank, and loading
// replaces it by the choice of the key's rule. A choice between words is a string that the table
// has checked; the folder that owns the meaning turns it into its own type.
//
// Relative paths are relative to the current directory, not to the file. Plain values; copy freely,
// share read-only between threads.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace longspan {

struct ModelConfig {
  std::string path;
  std::string preset;
  std::string init = "random";
  int64_t seed = 0;
  std::string dtype = "float32";
};

struct FastaConfig {
  double mask_n_weight = 0;
  double soft_mask_weight = 1;
  int64_t max_n_run = 0;
  std::string reverse_complement = "never";
  std::vector<std::string> circular;
  std::vector<std::string> hold_out;
};

struct DataConfig {
  std::vector<std::string> train;
  std::vector<std::string> eval;
  std::string format = "auto";
  std::string tokenizer = "byte";
  std::string overlong = "error";
  int64_t seed = 0;
  bool shuffle = true;
  bool append_end_of_document = true;
  FastaConfig fasta;
};

struct BatchConfig {
  int64_t micro_batch_tokens = 65536;
  int64_t micro_batches_per_step = 1;
};

struct LayoutConfig {
  int64_t ranks = 1;
  int64_t chunks = 1;
  int64_t band = 1;
  std::string stored_mode = "layer_inputs_attention";
  std::string inner_mode = "none";
  int64_t shard_group = 1;
  int64_t expert_group = 1;
  int64_t expert_chunk_pairs = 16384;
  int64_t threads_per_rank = 1;
  std::string device = "auto";  // until loading has chosen
  std::vector<std::string> allow_slow;
};

struct AttentionConfig {
  std::string servers = "in-place";
  int64_t dedicated = 0;
  double epsilon = 0.01;
  std::string profile = "built-in";
};

struct OptimizerConfig {
  int64_t steps = 1000;
  double lr = 3e-4;
  std::string schedule = "cosine";
  int64_t warmup_steps = 20;
  int64_t decay_steps = 980;
  double min_lr_ratio = 0.1;
  double weight_decay = 0.1;
  std::vector<double> betas = {0.9, 0.95};
  double eps = 1e-8;
  double clip = 1.0;
  double selection_bias_rate = 0;
};

struct OutputConfig {
  std::string folder = "runs/longspan";
  std::string resume = "auto";
  int64_t save_every = 0;
  int64_t keep_latest = 2;
  int64_t log_every = 1;
  int64_t eval_every = 0;
  int64_t trace_step = 0;
  bool tensorboard = true;
  bool report = true;
  bool hf_export_at_end = false;
};

struct RunSettings {
  double stall_timeout_s = 300;
  bool deterministic = true;
};

struct RunConfig {
  ModelConfig model;
  DataConfig data;
  BatchConfig batch;
  LayoutConfig layout;
  AttentionConfig attention;
  OptimizerConfig optimizer;
  OutputConfig output;
  RunSettings run;
};

}  // namespace longspan
