#include "config/contradictions.h"

#include <algorithm>
#include <iterator>

#include "base/check.h"
#include "base/error.h"

namespace longspan {
namespace {

// A rank in a process costs a thread or more, and each pair of ranks a mailbox.
constexpr int64_t kMostRanksOfProcess = 1024;
constexpr int64_t kMostThreadsPerCore = 16;

constexpr std::string_view kSlowOperations[] = {"attention", "linear attention", "index scoring",
                                                "sparse attention"};

class Checker {
 public:
  Checker(const LoadedConfig& loaded, const Surroundings& around)
      : loaded_(loaded), config_(loaded.config), around_(around) {}

  void check_all() const {
    check_model();
    check_data();
    check_layout();
    check_machine();
    check_device();
    check_attention();
    check_optimizer();
    check_output();
  }

 private:
  std::string quote(std::string_view name) const { return loaded_.quote(name); }

  bool changed(std::string_view name) const {
    const Setting& found = loaded_.setting(name);
    return found.explicit_value && found.value != found.key->initial();
  }

  template <typename... Parts>
  void refuse_if(bool contradiction, const Parts&... parts) const {
    if (contradiction) throw UserError(text("contradictory configuration: ", parts...));
  }

  void check_model() const {
    const bool has_path = !config_.model.path.empty();
    const bool has_preset = !config_.model.preset.empty();
    refuse_if(has_path && has_preset, quote("model.path"), " and ", quote("model.preset"),
              ": set one of them");
    if (!has_path && !has_preset) {
      throw UserError(text("no model in ", loaded_.source,
                           ": set model.path to a Hugging Face folder, or model.preset"));
    }
    refuse_if(has_preset && config_.model.init == "weights", quote("model.init"), " with ",
              quote("model.preset"),
              ": a preset has no weights; set model.path, or init = "
              "\"random\"");
  }

  void check_data() const {
    const std::string& format = config_.data.format;
    if (format != "auto" && format != "fasta") {
      for (const char* name :
           {"data.fasta.mask_n_weight", "data.fasta.soft_mask_weight", "data.fasta.max_n_run",
            "data.fasta.reverse_complement", "data.fasta.circular", "data.fasta.hold_out"}) {
        refuse_if(changed(name), quote(name), " has no effect with ", quote("data.format"));
      }
    }
    const bool has_ids = format == "auto" || format == "megatron" || format == "jsonl";
    refuse_if(config_.data.tokenizer == "none" && !has_ids, quote("data.tokenizer"), " with ",
              quote("data.format"), ": such files hold no token ids; name a tokenizer");
  }

  void check_layout() const {
    const LayoutConfig& layout = config_.layout;
    refuse_if(around_.launcher_ranks > 0 && layout.ranks != around_.launcher_ranks,
              quote("layout.ranks"), ", but the launcher started ", around_.launcher_ranks,
              " ranks: start as many, or set layout.ranks = \"auto\"");
    refuse_if(layout.band > layout.chunks, quote("layout.band"), " is more than ",
              quote("layout.chunks"));
    refuse_if(layout.chunks > config_.batch.micro_batch_tokens, quote("layout.chunks"),
              " is more than ", quote("batch.micro_batch_tokens"), ": a chunk has a token or more");
    refuse_if(layout.ranks % layout.shard_group != 0, quote("layout.shard_group"),
              " does not divide ", quote("layout.ranks"));
    refuse_if(layout.ranks % layout.expert_group != 0, quote("layout.expert_group"),
              " does not divide ", quote("layout.ranks"));
    refuse_if(layout.shard_group % layout.expert_group != 0 &&
                  layout.expert_group % layout.shard_group != 0,
              quote("layout.expert_group"), " and ", quote("layout.shard_group"),
              ": one must divide the other");
    const bool redone = layout.stored_mode == "context_only";
    refuse_if(redone && layout.inner_mode == "none", quote("layout.stored_mode"), " with ",
              quote("layout.inner_mode"),
              ": name what a band keeps while it is redone, or set \"auto\"");
    refuse_if(!redone && layout.inner_mode != "none", quote("layout.inner_mode"),
              " has no effect with ", quote("layout.stored_mode"));
  }

  // What this machine can carry; a configuration of another one is only read.
  void check_machine() const {
    if (around_.hardware_threads == 0) return;
    const LayoutConfig& layout = config_.layout;
    const bool launched = around_.launcher_ranks > 0;
    refuse_if(!launched && layout.ranks > kMostRanksOfProcess, quote("layout.ranks"),
              " without a launcher: the ranks would be threads of this process, at most ",
              kMostRanksOfProcess, "; start more with mpirun -n ", layout.ranks);
    const int64_t sharers = launched ? 1 : layout.ranks;
    const int64_t most = kMostThreadsPerCore * around_.hardware_threads;
    refuse_if(layout.threads_per_rank > 1 && layout.threads_per_rank > most / sharers,
              quote("layout.threads_per_rank"), " with ", sharers,
              sharers == 1 ? " rank" : " ranks", " in this process: the machine has ",
              around_.hardware_threads, " hardware threads, and at most ", most,
              " may be asked for; set \"auto\"");
  }

  void check_device() const {
    const bool on_gpu = config_.layout.device == "cuda";
    refuse_if(on_gpu && around_.launcher_ranks > 0 && !around_.gpu_per_process,
              quote("layout.device"), " under a launcher of ", around_.launcher_ranks,
              " ranks: MPI ranks run on CPU; ranks on GPUs are threads of one process (set "
              "layout.ranks), or processes that torchrun started");
    refuse_if(!on_gpu && config_.model.dtype == "bfloat16", quote("model.dtype"), " with ",
              quote("layout.device"), ": the CPU kernels run in float32 and float64");
    for (const std::string& word : config_.layout.allow_slow) {
      const auto known = std::find(std::begin(kSlowOperations), std::end(kSlowOperations), word);
      if (known != std::end(kSlowOperations)) continue;
      throw UserError(text(quote("layout.allow_slow"), ": \"", word,
                           "\" is none of the operations that may be slow: attention, linear "
                           "attention, index scoring, sparse attention"));
    }
    refuse_if(!on_gpu && !config_.layout.allow_slow.empty(), quote("layout.allow_slow"),
              " has no effect with ", quote("layout.device"));
  }

  void check_attention() const {
    const AttentionConfig& attention = config_.attention;
    refuse_if(attention.servers == "dedicated" && attention.dedicated == 0,
              quote("attention.servers"), " with ", quote("attention.dedicated"),
              ": say how many ranks serve");
    refuse_if(attention.servers == "in-place" && attention.dedicated > 0,
              quote("attention.servers"), " with ", quote("attention.dedicated"));
    refuse_if(attention.dedicated >= config_.layout.ranks && attention.dedicated > 0,
              quote("attention.dedicated"), " leaves no rank for the tokens, with ",
              quote("layout.ranks"), ": they are counted in");
  }

  void check_optimizer() const {
    const OptimizerConfig& optimizer = config_.optimizer;
    refuse_if(optimizer.warmup_steps > optimizer.steps, quote("optimizer.warmup_steps"),
              " is more than ", quote("optimizer.steps"));
    refuse_if(optimizer.decay_steps > optimizer.steps - optimizer.warmup_steps,
              quote("optimizer.decay_steps"), " and ", quote("optimizer.warmup_steps"),
              " are together more than ", quote("optimizer.steps"));
    if (optimizer.schedule == "constant") {
      refuse_if(optimizer.decay_steps > 0, quote("optimizer.decay_steps"), " has no effect with ",
                quote("optimizer.schedule"));
      refuse_if(changed("optimizer.min_lr_ratio"), quote("optimizer.min_lr_ratio"),
                " has no effect with ", quote("optimizer.schedule"));
    }
  }

  void check_output() const {
    if (config_.output.folder.empty()) throw UserError("output.folder is empty: name a folder");
    const bool held_out = !config_.data.eval.empty() || !config_.data.fasta.hold_out.empty();
    refuse_if(config_.output.eval_every > 0 && !held_out, quote("output.eval_every"),
              " without held-out documents: set data.eval or data.fasta.hold_out");
    refuse_if(config_.output.trace_step > config_.optimizer.steps, quote("output.trace_step"),
              " is behind the last step: ", quote("optimizer.steps"));
  }

  const LoadedConfig& loaded_;
  const RunConfig& config_;
  const Surroundings& around_;
};

}  // namespace

void check_contradictions(const LoadedConfig& loaded, const Surroundings& around) {
  Checker(loaded, around).check_all();
}

}  // namespace longspan
