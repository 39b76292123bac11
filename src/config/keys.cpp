#include "config/keys.h"

#include <algorithm>
#include <type_traits>
#include <utility>

#include "base/error.h"

namespace longspan {
namespace {

// Upper bounds far above any use: beyond them memory, time or the range of float32 ends, not a
// user's patience with a run that was meant.
constexpr double kMostTokens = 1099511627776;  // 2^40
constexpr double kMostRanks = 65536;
constexpr double kMostChunks = 65536;
constexpr double kMostMicroBatches = 16384;
constexpr double kLargestRate = 1000;   // float32 weights survive a step of it
constexpr double kLargestWeight = 1e6;  // of a token's loss
constexpr double kSmallestEps = 1e-30;  // is not 0 in float32

// One row under construction; each call adds one property and returns the row.
struct Row {
  ConfigKey key;

  Row& unit(std::string value) {
    key.unit = std::move(value);
    return *this;
  }
  Row& at_least(double low) {
    key.bounds.low = low;
    return *this;
  }
  Row& at_most(double high) {
    key.bounds.high = high;
    return *this;
  }
  Row& above(double low) {
    key.bounds.low_open = true;
    return at_least(low);
  }
  Row& below(double high) {
    key.bounds.high_open = true;
    return at_most(high);
  }
  Row& one_of(std::vector<std::string> words) {
    key.choices = std::move(words);
    return *this;
  }
  Row& length(int64_t count) {
    key.length = count;
    return *this;
  }
  Row& automatic(std::string in_words, AutoRule rule) {
    key.automatic = std::move(rule);
    key.automatic_doc = std::move(in_words);
    return *this;
  }
  Row& also_known_as(std::vector<std::string> names) {
    key.other_names = std::move(names);
    return *this;
  }
  Row& of_machine() {
    key.of_machine = true;
    return *this;
  }
};

template <typename Field>
Row make_row(std::string name, Field field, std::string doc) {
  Row row;
  row.key.name = std::move(name);
  row.key.doc = std::move(doc);
  row.key.get = [field](const RunConfig& config) { return ConfigValue(field(config)); };
  row.key.set = [field](RunConfig& config, const ConfigValue& value) {
    using Type = std::decay_t<decltype(field(config))>;
    field(config) = std::get<Type>(value);
  };
  return row;
}

// The name of a key is the path of its field, so the two cannot differ.
#define LONGSPAN_KEY(path, doc) \
  make_row(                     \
      #path, [](auto& config) -> auto& { return config.path; }, doc)

AutoChoice choose_ranks(const RunConfig&, const Surroundings& around) {
  if (around.launcher_ranks > 0) {
    return {around.launcher_ranks, text("the launcher started ", around.launcher_ranks, " ranks")};
  }
  return {int64_t{1}, "no launcher; more ranks in one process only when asked for"};
}

AutoChoice choose_band(const RunConfig& config, const Surroundings&) {
  return {config.layout.chunks, "all chunks: weights are gathered once per layer and pass"};
}

AutoChoice choose_inner_mode(const RunConfig& config, const Surroundings&) {
  if (config.layout.stored_mode == "context_only") {
    return {std::string("layer_inputs_attention"), "no second attention inside the band"};
  }
  return {std::string("none"), "only context_only has an inner mode"};
}

AutoChoice choose_shard_group(const RunConfig& config, const Surroundings&) {
  return {config.layout.ranks, "all ranks: least memory per rank"};
}

// Other rules go by the device, before it is chosen, too.
AutoChoice choose_device(const RunConfig& config, const Surroundings& around) {
  if (config.layout.device != "auto") return {config.layout.device, "asked for"};
  if (around.gpus == 0) return {std::string("cpu"), "no GPU that this build can use"};
  if (around.launcher_ranks > 0 && !around.gpu_per_process) {
    return {std::string("cpu"), "ranks that MPI started run on CPU"};
  }
  return {std::string("cuda"),
          text(around.gpus, around.gpus == 1 ? " GPU is" : " GPUs are", " visible")};
}

AutoChoice choose_dtype(const RunConfig& config, const Surroundings& around) {
  const ConfigValue device = choose_device(config, around).value;
  if (device == ConfigValue(std::string("cuda")))
    return {std::string("bfloat16"), "the fast kernels' type"};
  return {std::string("float32"), "the device is the CPU"};
}

AutoChoice choose_threads(const RunConfig& config, const Surroundings& around) {
  const int64_t sharers = around.launcher_ranks > 0 ? 1 : config.layout.ranks;
  const int64_t threads = std::max<int64_t>(1, around.hardware_threads / sharers);
  return {threads, text(around.hardware_threads, " hardware threads over ", sharers,
                        sharers == 1 ? " rank of this process" : " ranks of this process")};
}

AutoChoice choose_servers(const RunConfig& config, const Surroundings&) {
  if (config.attention.dedicated > 0) {
    return {std::string("dedicated"), "attention.dedicated asks for servers"};
  }
  return {std::string("in-place"), "attention.dedicated is 0"};
}

AutoChoice choose_warmup(const RunConfig& config, const Surroundings&) {
  return {config.optimizer.steps / 50, "2 % of the steps"};
}

AutoChoice choose_decay(const RunConfig& config, const Surroundings&) {
  const OptimizerConfig& optimizer = config.optimizer;
  if (optimizer.schedule == "constant") return {int64_t{0}, "a constant rate does not decay"};
  if (optimizer.schedule == "wsd") return {optimizer.steps / 5, "the last 20 % of the steps"};
  return {std::max<int64_t>(0, optimizer.steps - optimizer.warmup_steps), "all after the warm-up"};
}

AutoRule always(ConfigValue value, std::string reason) {
  return [choice = AutoChoice{std::move(value), std::move(reason)}](
             const RunConfig&, const Surroundings&) { return choice; };
}

std::vector<Row> model_rows() {
  return {
      LONGSPAN_KEY(model.path,
                   "Hugging Face model folder: config.json, and weights for init = \"weights\".")
          .also_known_as(
              {"checkpoint", "name_or_path", "pretrained_model_name_or_path", "weights", "folder"}),
      LONGSPAN_KEY(model.preset, "A built-in model shape instead of a folder, such as llama_tiny.")
          .also_known_as({"architecture", "config"}),
      LONGSPAN_KEY(model.init, "Start from random weights or from the safetensors in model.path.")
          .one_of({"random", "weights"}),
      LONGSPAN_KEY(model.seed, "Seed of the random weights.").at_least(0),
      LONGSPAN_KEY(model.dtype,
                   "Arithmetic of the run; accumulators are float32, or float64 in a float64 run. "
                   "Master weights are float32 with bfloat16, too.")
          .also_known_as({"precision", "torch_dtype", "bf16"})
          .one_of({"bfloat16", "float32", "float64"})
          .automatic("bfloat16 on a GPU, else float32", choose_dtype),
  };
}

std::vector<Row> data_rows() {
  return {
      LONGSPAN_KEY(data.train, "Files, folders or globs of training documents.")
          .also_known_as({"dataset", "documents", "files", "train_files", "path"}),
      LONGSPAN_KEY(data.eval, "Files, folders or globs of held-out documents.")
          .also_known_as({"eval_files", "validation", "held_out", "test"}),
      LONGSPAN_KEY(data.format, "What the files are; auto goes by each file's name.")
          .one_of({"auto", "text", "jsonl", "fasta", "megatron"}),
      LONGSPAN_KEY(data.tokenizer,
                   "How text becomes token ids; none for files that hold token ids already.")
          .one_of({"byte", "nucleotide", "none"}),
      LONGSPAN_KEY(data.overlong,
                   "What to do with a document longer than a micro-batch; each one is counted.")
          .also_known_as({"truncate", "too_long"})
          .one_of({"error", "skip", "split"}),
      LONGSPAN_KEY(data.seed, "Seed of the order of documents, for any number of ranks.")
          .at_least(0),
      LONGSPAN_KEY(
          data.shuffle,
          "Draw the order of documents anew for each epoch; off: as they lie in the files."),
      LONGSPAN_KEY(data.append_end_of_document,
                   "Add the tokenizer's end-of-document token to every document.")
          .also_known_as({"append_eod", "append_eos", "add_eos"}),
      LONGSPAN_KEY(data.fasta.mask_n_weight, "Loss weight of an N (any base unknown).")
          .also_known_as({"n_weight"})
          .at_least(0)
          .at_most(kLargestWeight),
      LONGSPAN_KEY(data.fasta.soft_mask_weight, "Loss weight of a base in lower case.")
          .at_least(0)
          .at_most(kLargestWeight),
      LONGSPAN_KEY(data.fasta.max_n_run,
                   "A run of more N than this ends the document; 0: no run does.")
          .at_least(0)
          .unit("bases"),
      LONGSPAN_KEY(data.fasta.reverse_complement,
                   "random: one seeded choice of strand for each document and epoch.")
          .also_known_as({"strand"})
          .one_of({"never", "random"}),
      LONGSPAN_KEY(data.fasta.circular,
                   "Record names or globs that are circular: they start at a seeded rotation."),
      LONGSPAN_KEY(data.fasta.hold_out,
                   "Records kept out of training: names, globs, or BED files (*.bed)."),
  };
}

std::vector<Row> batch_and_layout_rows() {
  const std::vector<std::string> modes = {"keep", "layer_inputs_attention", "layer_inputs"};
  std::vector<std::string> stored_modes = modes;
  stored_modes.push_back("context_only");
  std::vector<std::string> inner_modes = modes;
  inner_modes.insert(inner_modes.begin(), "none");
  return {
      LONGSPAN_KEY(batch.micro_batch_tokens,
                   "Length of a micro-batch over all ranks; the longest document that fits.")
          .also_known_as({"batch_size", "micro_batch_size", "batch_tokens", "max_tokens",
                          "max_length", "sequence_length", "seq_len", "seq_length",
                          "context_length", "block_size"})
          .at_least(1)
          .at_most(kMostTokens)
          .unit("tokens"),
      LONGSPAN_KEY(batch.micro_batches_per_step,
                   "Micro-batches whose gradients make one step; a step's are in memory together.")
          .also_known_as({"gradient_accumulation_steps", "accumulation_steps", "grad_accum"})
          .at_least(1)
          .at_most(kMostMicroBatches),
      LONGSPAN_KEY(layout.ranks,
                   "Ranks in all, dedicated attention servers counted in; at most 1024 as threads "
                   "of one process.")
          .also_known_as({"world_size", "num_ranks", "processes", "gpus", "context_parallel_size",
                          "data_parallel_size"})
          .at_least(1)
          .at_most(kMostRanks)
          .automatic("the launcher's world size, else 1", choose_ranks),
      LONGSPAN_KEY(layout.chunks, "Chunks that a micro-batch is cut into, run in causal order.")
          .also_known_as({"num_chunks"})
          .at_least(1)
          .at_most(kMostChunks)
          .automatic("1", always(int64_t{1}, "fixed until there is a memory plan to choose by")),
      LONGSPAN_KEY(layout.band, "Consecutive chunks that go through a layer together.")
          .at_least(1)
          .automatic("all chunks", choose_band),
      LONGSPAN_KEY(layout.stored_mode, "What is kept between a band's forward and its backward.")
          .also_known_as({"recompute", "activation_checkpointing", "gradient_checkpointing"})
          .one_of(stored_modes)
          .automatic("layer_inputs_attention",
                     always(std::string("layer_inputs_attention"),
                            "fixed until there is a memory plan; no second attention, no second "
                            "exchange")),
      LONGSPAN_KEY(layout.inner_mode, "With context_only: what a band keeps while it is redone.")
          .one_of(inner_modes)
          .automatic("layer_inputs_attention with context_only, else none", choose_inner_mode),
      LONGSPAN_KEY(layout.shard_group, "Ranks that share one copy of the weights; divides ranks.")
          .also_known_as({"fsdp", "zero"})
          .at_least(1)
          .automatic("all ranks", choose_shard_group),
      LONGSPAN_KEY(layout.expert_group,
                   "Ranks over which the experts of a layer are spread; divides ranks, and "
                   "shard_group or is divided by it.")
          .also_known_as({"expert_parallel_size"})
          .at_least(1),
      LONGSPAN_KEY(layout.expert_chunk_pairs,
                   "Tokens times experts that a rank sends or receives at once; less needs less "
                   "memory.")
          .at_least(1),
      LONGSPAN_KEY(layout.threads_per_rank,
                   "CPU threads of each rank; those of a process at most 16 times the hardware's.")
          .also_known_as({"threads", "num_threads"})
          .at_least(1)
          .automatic("hardware threads over the ranks of the process", choose_threads)
          .of_machine(),
      LONGSPAN_KEY(
          layout.device,
          "What computes: the CPU, or the GPUs that the process sees, dealt out to its ranks "
          "in turn.")
          .one_of({"cpu", "cuda"})
          .automatic("cuda if this build can use a GPU of this machine, else cpu", choose_device),
      LONGSPAN_KEY(
          layout.allow_slow,
          "Operations that may run on a GPU without a fast kernel: attention, linear attention, "
          "index scoring, sparse attention. Otherwise that is an error."),
  };
}

std::vector<Row> attention_rows() {
  return {
      LONGSPAN_KEY(attention.servers,
                   "Who runs attention tasks: every rank in place, or some ranks that only serve.")
          .one_of({"in-place", "dedicated"})
          .automatic("dedicated if attention.dedicated is above 0", choose_servers),
      LONGSPAN_KEY(attention.dedicated, "How many of the ranks only serve attention.")
          .also_known_as({"num_servers"})
          .at_least(0),
      LONGSPAN_KEY(attention.epsilon,
                   "Accepted imbalance: no server's predicted load above (1 + epsilon) x mean.")
          .at_least(0)
          .at_most(1),
      LONGSPAN_KEY(attention.profile,
                   "Which times of kernels and links the planner balances by: built-in, the name "
                   "of a built-in profile, or a file that `longspan profile` wrote."),
  };
}

std::vector<Row> optimizer_rows() {
  return {
      LONGSPAN_KEY(optimizer.steps, "Optimizer steps of the whole run.")
          .also_known_as(
              {"max_steps", "num_steps", "total_steps", "train_iters", "iterations", "epochs"})
          .at_least(1),
      LONGSPAN_KEY(optimizer.lr, "Peak learning rate of AdamW.")
          .also_known_as({"learning_rate", "max_lr", "peak_lr"})
          .above(0)
          .at_most(kLargestRate),
      LONGSPAN_KEY(
          optimizer.schedule,
          "cosine, warm-up then stable then linear decay (wsd), or constant after warm-up.")
          .also_known_as(
              {"scheduler", "lr_scheduler", "lr_scheduler_type", "lr_schedule", "decay_style"})
          .one_of({"cosine", "wsd", "constant"}),
      LONGSPAN_KEY(optimizer.warmup_steps, "Steps of linear warm-up from 0.")
          .also_known_as({"warmup", "warmup_ratio", "warmup_iters"})
          .at_least(0)
          .unit("steps")
          .automatic("2 % of the steps", choose_warmup),
      LONGSPAN_KEY(optimizer.decay_steps, "Steps of decay at the end.")
          .also_known_as({"lr_decay_iters", "cooldown_steps"})
          .at_least(0)
          .unit("steps")
          .automatic("cosine: all after the warm-up; wsd: the last 20 %; constant: 0",
                     choose_decay),
      LONGSPAN_KEY(optimizer.min_lr_ratio, "Learning rate at the end over the peak.")
          .also_known_as({"min_lr"})
          .at_least(0)
          .at_most(1),
      LONGSPAN_KEY(optimizer.weight_decay,
                   "Decoupled weight decay of matrices (embeddings too); norms have none.")
          .at_least(0)
          .at_most(kLargestRate),
      LONGSPAN_KEY(optimizer.betas, "Decay of the first and the second moment.")
          .also_known_as({"beta1", "beta2", "adam_beta1", "adam_beta2", "momentum"})
          .at_least(0)
          .below(1)
          .length(2),
      LONGSPAN_KEY(optimizer.eps, "Added to the root of the second moment.")
          .also_known_as({"adam_epsilon", "epsilon"})
          .at_least(kSmallestEps),
      LONGSPAN_KEY(optimizer.clip, "Largest global norm of the gradient; 0: no clipping.")
          .also_known_as({"max_grad_norm", "grad_clip", "gradient_clip", "gradient_clipping",
                          "clip_grad", "max_norm"})
          .at_least(0),
      LONGSPAN_KEY(optimizer.selection_bias_rate,
                   "How far a step moves the router's selection bias of an expert: up below the "
                   "mean load, down above it; 0: the bias stays.")
          .at_least(0)
          .at_most(kLargestRate),
  };
}

std::vector<Row> output_and_run_rows() {
  return {
      LONGSPAN_KEY(output.folder, "Where checkpoints, logs and the report of the run go.")
          .also_known_as({"output_dir", "save_dir", "out", "directory"}),
      LONGSPAN_KEY(output.resume,
                   "auto: go on from the latest checkpoint in the folder; never: refuse a folder "
                   "that has one.")
          .one_of({"auto", "never"}),
      LONGSPAN_KEY(output.save_every, "Steps between checkpoints; 0: only at the end.")
          .also_known_as({"save_steps", "save_interval", "checkpoint_every", "checkpoint_interval"})
          .at_least(0)
          .unit("steps"),
      LONGSPAN_KEY(output.keep_latest, "Checkpoints kept; older ones go once a newer is complete.")
          .also_known_as({"save_total_limit", "keep_latest_k"})
          .at_least(1),
      LONGSPAN_KEY(output.log_every, "Steps between console lines; the logs have every step.")
          .also_known_as({"logging_steps", "log_interval", "log_freq"})
          .at_least(1)
          .unit("steps"),
      LONGSPAN_KEY(output.eval_every, "Steps between evaluations of data.eval; 0: only at the end.")
          .also_known_as({"eval_steps", "eval_interval"})
          .at_least(0)
          .unit("steps"),
      LONGSPAN_KEY(
          output.trace_step,
          "The step whose operations are drawn on a time line in trace.json of the folder, "
          "for Perfetto or chrome://tracing; 0: none.")
          .at_least(0),
      LONGSPAN_KEY(output.tensorboard, "Write a TensorBoard event file.")
          .also_known_as({"report_to"}),
      LONGSPAN_KEY(output.report, "Write an HTML report with the loss curve at the end."),
      LONGSPAN_KEY(output.hf_export_at_end, "Export a Hugging Face folder after the last step.")
          .also_known_as({"export_hf"}),
      LONGSPAN_KEY(run.stall_timeout_s,
                   "A rank that waits longer than this ends the run and names whom it waits for.")
          .also_known_as({"timeout", "timeout_s"})
          .above(0)
          .unit("s"),
      LONGSPAN_KEY(run.deterministic,
                   "The same bits on every repeat, also where a GPU library has a faster way; on "
                   "CPU this is always so."),
  };
}

#undef LONGSPAN_KEY

std::vector<ConfigKey> build_keys() {
  std::vector<ConfigKey> keys;
  for (const auto& rows : {model_rows(), data_rows(), batch_and_layout_rows(), attention_rows(),
                           optimizer_rows(), output_and_run_rows()}) {
    for (const Row& row : rows) keys.push_back(row.key);
  }
  return keys;
}

}  // namespace

const std::vector<ConfigKey>& config_keys() {
  static const std::vector<ConfigKey> keys = build_keys();
  return keys;
}

}  // namespace longspan
