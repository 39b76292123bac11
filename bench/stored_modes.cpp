// One training step of one long document in every stored mode: what is kept, by the program's own
// count and by closed form, what runs a second time, peak memory and time.
//
//   longspan_stored_modes [--tokens=65536] [--layers=2] [--chunks=4] [--band=1 ...] [--json=FILE]
//
// Each case is a process of its own, so that peaks do not mix. Ends with 1 if a measured figure is
// above its closed form, so that neither memory nor work can grow unnoticed.
#include <ATen/Parallel.h>
#include <sys/wait.h>
#include <unistd.h>

#include <CLI/CLI.hpp>

#include <chrono>
#include <cstdio>
#include <ctime>
#include <iomanip>
#include <iostream>
#include <nlohmann/json.hpp>
#include <sstream>

#include "base/check.h"
#include "base/error.h"
#include "base/narrow.h"
#include "comm/run_ranks.h"
#include "formats/json.h"
#include "layers/tensor_memory.h"
#include "model/transformer_model.h"
#include "observe/build_info.h"
#include "observe/machine.h"
#include "one_document.h"
#include "spec/presets.h"
#include "train/executor.h"
#include "train/model_store.h"

namespace longspan {
namespace {

constexpr int64_t kElementBytes = 4;  // float32

struct BenchArguments {
  int64_t tokens = 65536;
  int64_t layers = 2;
  int chunks = 4;
  std::vector<int> bands = {1, 2};
  std::string json;
};

struct ModeCase {
  StoredMode mode = StoredMode::kKeep;
  StoredMode inner = StoredMode::kKeep;
  int band = 1;
};

const std::vector<std::pair<StoredMode, StoredMode>> kModes = {
    {StoredMode::kKeep, StoredMode::kKeep},
    {StoredMode::kLayerInputsAttention, StoredMode::kKeep},
    {StoredMode::kLayerInputs, StoredMode::kKeep},
    {StoredMode::kContextOnly, StoredMode::kKeep},
    {StoredMode::kContextOnly, StoredMode::kLayerInputsAttention},
    {StoredMode::kContextOnly, StoredMode::kLayerInputs},
};

// Elements per token and layer of what can be kept. C model width, Q query width, G width of keys
// (and of values), H heads, F feed-forward width.
struct RowElements {
  int64_t input = 0;        // C
  int64_t attention = 0;    // O and LSE: Q + H
  int64_t context = 0;      // K and V: 2 G
  int64_t keep = 0;         // as built: norms and the SwiGLU product are computed again in backward
  int64_t keep_design = 0;  // all activations
  int64_t working = 0;      // of a layer in work, besides: gradients, and one layer's graphs
};

RowElements row_elements(const ModelSpec& spec) {
  const int64_t hidden = spec.hidden_size;
  const int64_t query = spec.query_width();
  const int64_t context = 2 * spec.kv_width();
  const int64_t forward = spec.intermediate_size;
  const int64_t heads = spec.num_query_heads;
  RowElements row{.input = hidden, .attention = query + heads, .context = context};
  // pre: x and its inverse root mean square, Q, K, V; O, LSE; post: O again counts once, h and its
  // inverse root mean square, gate and up.
  row.keep = hidden + 1 + query + context + query + heads + hidden + 1 + 2 * forward;
  row.keep_design = row.keep + 2 * hidden + forward;
  // Of a band: its graphs; dX above, below and beside attention; dO, dQ, dK, dV; the next layer's
  // input.
  row.working = row.keep + 4 * hidden + 2 * query + context;
  return row;
}

// What the closed forms say of a case, in bytes for the whole micro-batch and forwards per token.
struct Expected {
  int64_t stored_bytes = 0;
  int64_t design_bytes = 0;
  int64_t peak_bytes = 0;
  double extra_linear = 0;     // forwards of everything but attention, beyond the first
  double extra_attention = 0;  // forwards of attention, beyond the first
};

int64_t layer_elements(const RowElements& row, StoredMode mode, bool design) {
  switch (mode) {
    case StoredMode::kKeep:
      return design ? row.keep_design : row.keep;
    case StoredMode::kLayerInputsAttention:
      return row.input + row.attention;
    case StoredMode::kLayerInputs:
      return row.input;
    case StoredMode::kContextOnly:
      return 0;  // what is carried comes on top
  }
  throw InternalError("unknown stored mode");
}

Expected expect(const ModelSpec& spec, const TokenLayout& layout, const ModeCase& c) {
  const RowElements row = row_elements(spec);
  const int bands = (layout.num_chunks() + c.band - 1) / c.band;
  const bool context_only = c.mode == StoredMode::kContextOnly;
  const StoredMode inner = context_only ? c.inner : c.mode;
  int64_t band_tokens_max = 0;
  int64_t last_band_tokens = 0;
  for (int band = 0; band < bands; ++band) {
    last_band_tokens = 0;
    for (int chunk = band * c.band; chunk < std::min((band + 1) * c.band, layout.num_chunks());
         ++chunk) {
      last_band_tokens += layout.piece(chunk, 0).size();
    }
    band_tokens_max = std::max(band_tokens_max, last_band_tokens);
  }
  // One document: all tokens before the last band are looked back at from a later band.
  const int64_t carried_tokens = layout.num_tokens() - last_band_tokens;
  const int64_t kept_tokens = context_only ? last_band_tokens : layout.num_tokens();
  const auto stored = [&](bool design) {
    int64_t elements = spec.num_layers * kept_tokens * layer_elements(row, inner, design);
    // In keep the keys and values are counted already, but not those of a context-only pass.
    if (c.mode != StoredMode::kKeep) elements += spec.num_layers * carried_tokens * row.context;
    return kElementBytes * (elements + kept_tokens * spec.hidden_size);  // the last layer's output
  };
  Expected expected{.stored_bytes = stored(false), .design_bytes = stored(true)};
  expected.peak_bytes =
      expected.stored_bytes + kElementBytes * (band_tokens_max * row.working +
                                               spec.num_layers * carried_tokens * row.context);
  const double again = context_only ? static_cast<double>(bands - 1) / bands : 0;
  expected.extra_linear = again + (inner == StoredMode::kKeep ? 0 : 1);
  expected.extra_attention = again + (inner == StoredMode::kLayerInputs ? 1 : 0);
  return expected;
}

// Forwards that the schedule runs, in units of one forward of the whole micro-batch: work counted
// in weights x tokens, and in attended pairs.
struct Forwards {
  double linear = 0;
  double attention = 0;
};

Forwards count_forwards(const ModelSpec& spec, const TokenLayout& layout,
                        const StepSchedule& schedule) {
  const double pre =
      static_cast<double>(spec.hidden_size * (spec.query_width() + 2 * spec.kv_width()));
  const double post = static_cast<double>(spec.query_width() * spec.hidden_size +
                                          3 * spec.hidden_size * spec.intermediate_size);
  const auto layers = static_cast<double>(spec.num_layers);
  const auto pairs = [&](const Range& line) {
    double sum = 0;
    for (const DocumentPart& part : layout.document_parts(line)) {
      sum += static_cast<double>(visible_pairs(part.positions, {0, part.positions.end}));
    }
    return sum;
  };
  Forwards forwards;
  for (const Operation& operation : schedule.operations) {
    if (operation.pass == Pass::kBackward) continue;
    const Range line = layout.piece(operation.chunk, schedule.rank);
    const auto tokens = static_cast<double>(line.size());
    if (operation.kind == OperationKind::kPreSegment) forwards.linear += tokens * pre;
    if (operation.kind == OperationKind::kPostSegment) forwards.linear += tokens * post;
    if (operation.kind == OperationKind::kAttentionBegin) forwards.attention += pairs(line);
  }
  forwards.linear /= layers * static_cast<double>(layout.num_tokens()) * (pre + post);
  forwards.attention /= layers * pairs({0, layout.num_tokens()});
  return forwards;
}

// Runs one case in this process. Its keys are the columns of the table.
Json run_case(const BenchArguments& arguments, const ModeCase& c) {
  ModelSpec spec = preset_spec("bench_llama_4x256");
  spec.num_layers = arguments.layers;
  std::vector<PlannedMicroBatch> batches;
  batches.push_back(one_document(arguments.tokens, arguments.chunks, spec.vocab_size));
  const TokenLayout& layout = batches[0].layout;
  const StepSchedule schedule = build_step_schedule({.num_layers = narrow<int>(spec.num_layers),
                                                     .band_chunks = c.band,
                                                     .stored_mode = c.mode,
                                                     .inner_mode = c.inner},
                                                    {{&layout, &batches[0].plans}}, /*rank=*/0);
  const Expected expected = expect(spec, layout, c);
  const Forwards forwards = count_forwards(spec, layout, schedule);
  const auto tokens = static_cast<double>(arguments.tokens);
  Json result = {
      {"mode", stored_mode_name(c.mode)},
      {"inner_mode", c.mode == StoredMode::kContextOnly ? stored_mode_name(c.inner) : ""},
      {"band", c.band},
      {"form_bytes_per_token", static_cast<double>(expected.stored_bytes) / tokens},
      {"design_bytes_per_token", static_cast<double>(expected.design_bytes) / tokens},
      {"peak_form_bytes_per_token", static_cast<double>(expected.peak_bytes) / tokens},
      {"extra_linear", forwards.linear - 1},
      {"extra_linear_design", expected.extra_linear},
      {"extra_attention", forwards.attention - 1},
      {"extra_attention_design", expected.extra_attention}};
  keep_tensor_memory();  // as the program does
  run_ranks(1, {}, [&](Communicator& comm) {
    at::set_num_threads(narrow<int>(usable_threads()));
    const auto model = make_model(spec, at::kFloat);
    ParameterStore store = make_parameter_store(model->parameters(), comm, {});
    fill_random(model->parameters(), kBenchSeed, store, comm);
    Executor executor(*model, store, comm);
    result["resident_before_bytes"] = resident_bytes();
    LONGSPAN_CHECK(reset_peak_resident(), "the system cannot start peak memory anew");
    const auto start = std::chrono::steady_clock::now();
    const StepTotals totals = executor.run(
        schedule, batches, {.loss_scale = 1 / batches[0].data.weight_sum, .account_bytes = true});
    store.step({}, /*lr=*/1e-4, /*clip=*/1, "optimizer step");
    result["step_s"] =
        std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
    result["attention_s"] = totals.attention_s;
    result["peak_resident_bytes"] = peak_resident_bytes();
    result["stored_bytes_per_token"] = static_cast<double>(totals.stored_bytes) / tokens;
    result["peak_bytes_per_token"] = static_cast<double>(totals.stored_bytes_peak) / tokens;
    result["loss"] = totals.weighted_loss_sum / batches[0].data.weight_sum;
  });
  return result;
}

// Runs a case in a process of its own and reads its result through a pipe.
Json run_apart(const BenchArguments& arguments, const ModeCase& c) {
  int ends[2];
  LONGSPAN_CHECK(pipe(ends) == 0, "no pipe");
  std::cout << std::flush;
  const pid_t child = fork();
  LONGSPAN_CHECK(child >= 0, "no process");
  if (child == 0) {
    close(ends[0]);
    int code = 0;
    try {
      const std::string line = run_case(arguments, c).dump();
      LONGSPAN_CHECK(write(ends[1], line.data(), line.size()) == std::ssize(line), "short write");
    } catch (const std::exception& error) {
      std::cerr << "longspan_stored_modes: " << error.what() << std::endl;
      code = 2;
    }
    std::_Exit(code);
  }
  close(ends[1]);
  std::string line;
  char block[4096];
  for (ssize_t count = 0; (count = read(ends[0], block, sizeof block)) > 0;) {
    line.append(block, static_cast<size_t>(count));
  }
  close(ends[0]);
  int status = 0;
  waitpid(child, &status, 0);
  LONGSPAN_CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 0, "case ", stored_mode_name(c.mode),
                 ", band ", c.band, " ended with status ", status);
  return parse_json(line, "result of a case");
}

struct Check {
  const char* measured;
  const char* limit;
  double rounding;  // counts are exact; ratios of float64 sums are not
};

constexpr Check kChecks[] = {
    {"stored_bytes_per_token", "form_bytes_per_token", 0},
    {"form_bytes_per_token", "design_bytes_per_token", 0},
    {"peak_bytes_per_token", "peak_form_bytes_per_token", 0},
    {"extra_linear", "extra_linear_design", 1e-9},
    {"extra_attention", "extra_attention_design", 1e-9},
};

// Names of the figures above their limits.
std::string broken_limits(const Json& result) {
  std::string names;
  for (const Check& check : kChecks) {
    if (result.at(check.measured).get<double>() >
        result.at(check.limit).get<double>() + check.rounding) {
      names += text(names.empty() ? "" : ", ", check.measured);
    }
  }
  return names;
}

void print_header() {
  std::cout
      << "| stored mode | inner | band | stored B/token | closed form | design | peak B/token | at "
         "most | peak RSS GiB | step s | attention s | extra linear (design) | extra attention "
         "(design) |\n|---|---|---|---|---|---|---|---|---|---|---|---|---|\n";
}

void print_row(const Json& result) {
  const auto number = [&](const char* key) { return result.at(key).get<double>(); };
  constexpr double kGib = 1 << 30;
  std::ostringstream row;
  row << std::fixed << std::setprecision(0) << "| " << result.at("mode").get<std::string>() << " | "
      << result.at("inner_mode").get<std::string>() << " | " << result.at("band") << " | "
      << number("stored_bytes_per_token") << " | " << number("form_bytes_per_token") << " | "
      << number("design_bytes_per_token") << " | " << number("peak_bytes_per_token") << " | "
      << number("peak_form_bytes_per_token") << " | " << std::setprecision(2)
      << number("peak_resident_bytes") / kGib << " | " << std::setprecision(1) << number("step_s")
      << " | " << number("attention_s") << " | " << std::setprecision(2) << number("extra_linear")
      << " (" << number("extra_linear_design") << ") | " << number("extra_attention") << " ("
      << number("extra_attention_design") << ") |\n";
  std::cout << row.str() << std::flush;
}

std::string now_utc() {
  const std::time_t now = std::time(nullptr);
  std::ostringstream date;
  date << std::put_time(std::gmtime(&now), "%FT%TZ");
  return date.str();
}

int run_all(const BenchArguments& arguments, const std::string& command) {
  const MachineInfo machine = describe_machine();
  Json report = {
      {"command", command},
      {"commit", build_commit()},
      {"date", now_utc()},
      {"machine", {{"cpu", machine.cpu}, {"cores", machine.threads}, {"system", machine.system}}},
      {"tokens", arguments.tokens},
      {"layers", arguments.layers},
      {"chunks", arguments.chunks},
      {"cases", Json::array()}};
  bool good = true;
  print_header();
  for (const int band : arguments.bands) {
    for (const auto& [mode, inner] : kModes) {
      const Json result = run_apart(arguments, {mode, inner, band});
      print_row(result);
      const std::string broken = broken_limits(result);
      if (!broken.empty()) std::cout << "above its closed form: " << broken << "\n";
      good = good && broken.empty();
      report["cases"].push_back(result);
    }
  }
  if (!arguments.json.empty()) write_json_atomic(arguments.json, report);
  return good ? 0 : 1;
}

}  // namespace
}  // namespace longspan

int main(int argc, char** argv) {
  CLI::App app("Memory, repeated work and time of every stored mode on one long document.");
  longspan::BenchArguments arguments;
  app.add_option("--tokens", arguments.tokens, "Length of the document");
  app.add_option("--layers", arguments.layers, "Layers of the model (256 wide)");
  app.add_option("--chunks", arguments.chunks, "Chunks of the micro-batch");
  app.add_option("--band", arguments.bands, "Chunks in a band; several may be given");
  app.add_option("--json", arguments.json, "Write all figures to this file");
  CLI11_PARSE(app, argc, argv);
  std::string command;
  for (int i = 0; i < argc; ++i) command += longspan::text(i > 0 ? " " : "", argv[i]);
  try {
    return longspan::run_all(arguments, command);
  } catch (const std::exception& error) {
    std::cerr << "longspan_stored_modes: " << error.what() << std::endl;
    return 2;
  }
}
