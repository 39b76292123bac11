// One training step of one long document through a hybrid model in context-only mode: what is kept
// per token, by the program's own count and by closed form, peak memory, tokens per second.
//
//   longspan_hybrid_memory [--preset=glm53_flash_tiny] [--tokens=16384 ...] [--chunk-tokens=4096]
//   longspan_hybrid_memory --device=cuda --dtype=bfloat16 --preset=glm53_flash_mini
//       --tokens=16384 65536 262144 1048576 --chunk-tokens=16384
//
// What context-only keeps of a token is what later tokens look back at (a latent and a share of a
// pool key for each layer of sparse attention), and what was chosen (pools, experts): nothing that
// grows with layers times streams. States of linear attention are kept once for a chunk.
// Each length is a process of its own, so that peaks do not mix. Ends with 1 if more is kept than
// the closed form says. On a GPU the peak is that of all tensors there, weights and optimizer state
// included; ids that the host reads back count as kept, too.
#include <ATen/Parallel.h>
#include <sys/wait.h>
#include <unistd.h>

#include <CLI/CLI.hpp>

#include <chrono>
#include <iomanip>
#include <iostream>

#include "base/check.h"
#include "base/narrow.h"
#include "comm/run_ranks.h"
#include "device/device.h"
#include "layers/tensor_memory.h"
#include "model/transformer_model.h"
#include "observe/machine.h"
#include "one_document.h"
#include "spec/kept_bytes.h"
#include "spec/parameter_table.h"
#include "spec/presets.h"
#include "train/executor.h"
#include "train/model_store.h"
#include "train/sequence_mixes.h"

namespace longspan {
namespace {

struct BenchArguments {
  std::string preset = "glm53_flash_tiny";
  std::vector<int64_t> tokens = {16384, 65536, 262144};
  int64_t chunk_tokens = 4096;
  std::string device = "cpu";
  std::string dtype = "float32";
  int64_t expert_pairs = kExpertPairsPerChunk;

  bool bfloat16() const { return dtype == "bfloat16"; }
};

// Bytes of the whole document while its last band is at work.
double closed_form_bytes(const BenchArguments& arguments, const ModelSpec& spec,
                         const TokenLayout& layout) {
  const bool on_gpu = arguments.device != "cpu";
  const KeptBytes kept = kept_bytes(spec, arguments.bfloat16() ? 2 : 4, on_gpu);
  const int64_t tokens = layout.num_tokens();
  const int64_t last_band = layout.chunk(layout.num_chunks() - 1).size();
  // The last band runs in the inner mode, layer_inputs.
  return static_cast<double>((tokens - last_band) * kept.of_mode("context_only") +
                             last_band * kept.of_mode("layer_inputs") +
                             (layout.num_chunks() - 1) * kept.chunk_border);
}

// Prints the row of a length; false if more is kept than the closed form says.
bool run_length(const BenchArguments& arguments, int64_t tokens) {
  const ModelSpec spec = preset_spec(arguments.preset);
  const auto chunks = narrow<int>((tokens + arguments.chunk_tokens - 1) / arguments.chunk_tokens);
  std::vector<PlannedMicroBatch> batches;
  batches.push_back(one_document(tokens, chunks, spec.vocab_size));
  const StepSchedule schedule =
      build_step_schedule({.num_layers = narrow<int>(spec.num_layers),
                           .layers = scheduled_layers(spec),
                           .band_chunks = 1,
                           .stored_mode = StoredMode::kContextOnly,
                           .inner_mode = StoredMode::kLayerInputs,
                           .tied_embeddings = spec.tied_embeddings},
                          {{&batches[0].layout, &batches[0].plans}}, /*rank=*/0);
  const double form =
      closed_form_bytes(arguments, spec, batches[0].layout) / static_cast<double>(tokens);
  bool within = true;
  keep_tensor_memory();  // as the program does
  set_deterministic(true);
  const at::Device device = device_from_name(arguments.device);
  const RunRanksOptions ranks{.device_memory = device_memory(device)};
  run_ranks(1, ranks, [&](Communicator& comm) {
    const DeviceThread thread(device);
    at::set_num_threads(narrow<int>(usable_threads()));
    const auto model = make_model(
        spec, at::TensorOptions(arguments.bfloat16() ? at::kBFloat16 : at::kFloat).device(device));
    ParameterStore store = make_parameter_store(
        model->parameters(), comm, {.bfloat16 = arguments.bfloat16(), .device = device});
    fill_random(model->parameters(), kBenchSeed, store, comm);
    Executor executor(*model, store, comm);
    const auto before = static_cast<double>(resident_bytes());
    const auto start = std::chrono::steady_clock::now();
    const StepTotals totals = executor.run(schedule, batches,
                                           {.loss_scale = 1 / batches[0].data.weight_sum,
                                            .max_expert_pairs_per_chunk = arguments.expert_pairs,
                                            .account_bytes = true});
    store.step({}, /*lr=*/1e-4, /*clip=*/1, "optimizer step");
    finish_work(device);
    const double step_s =
        std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
    const double stored = static_cast<double>(totals.stored_bytes) / static_cast<double>(tokens);
    within = stored <= form;
    constexpr double kGib = 1 << 30;
    const double peak = device.is_cpu() ? static_cast<double>(peak_resident_bytes()) - before
                                        : static_cast<double>(device_bytes_peak(device));
    std::cout << std::fixed << "| " << tokens << " | " << chunks << std::setprecision(0) << " | "
              << stored << " | " << form << " | " << std::setprecision(2)
              << static_cast<double>(totals.stored_bytes_peak) / kGib << " | " << peak / kGib
              << " | " << std::setprecision(0) << static_cast<double>(tokens) / step_s << " | "
              << std::setprecision(4) << totals.weighted_loss_sum / batches[0].data.weight_sum
              << " |" << std::endl;
  });
  return within;
}

bool run_apart(const BenchArguments& arguments, int64_t tokens) {
  const pid_t child = fork();
  LONGSPAN_CHECK(child >= 0, "no process");
  if (child == 0) {
    int code = 2;
    try {
      code = run_length(arguments, tokens) ? 0 : 1;
    } catch (const std::exception& error) {
      std::cerr << "longspan_hybrid_memory: " << error.what() << std::endl;
    }
    std::_Exit(code);
  }
  int status = 0;
  waitpid(child, &status, 0);
  return WIFEXITED(status) && WEXITSTATUS(status) == 0;
}

}  // namespace
}  // namespace longspan

int main(int argc, char** argv) {
  CLI::App app("Memory and speed of one long document through a hybrid model.");
  longspan::BenchArguments arguments;
  app.add_option("--preset", arguments.preset);
  app.add_option("--tokens", arguments.tokens);
  app.add_option("--chunk-tokens", arguments.chunk_tokens)->check(CLI::PositiveNumber);
  app.add_option("--device", arguments.device)->check(CLI::IsMember({"cpu", "cuda"}));
  app.add_option("--dtype", arguments.dtype)->check(CLI::IsMember({"float32", "bfloat16"}));
  app.add_option("--expert-pairs", arguments.expert_pairs)->check(CLI::PositiveNumber);
  CLI11_PARSE(app, argc, argv);
  std::cout << arguments.preset << ", " << arguments.device << ", " << arguments.dtype
            << ", parameters "
            << longspan::ParameterTable(longspan::preset_spec(arguments.preset)).total_elements()
            << "\n";
  std::cout << "| tokens | chunks | kept B/token | closed form | buffers' peak GiB | peak GiB | "
               "tokens/s | loss |\n|---|---|---|---|---|---|---|---|\n"
            << std::flush;
  bool within = true;
  for (const int64_t tokens : arguments.tokens)
    within = longspan::run_apart(arguments, tokens) && within;
  return within ? 0 : 1;
}
