#include "spec/presets.h"

#include <algorithm>

#include "base/error.h"

namespace longspan {
namespace {

struct Preset {
  const char* name;
  ModelSpec spec;
};

constexpr int64_t kByteVocabulary = 257;
constexpr int64_t kNucleotideVocabulary = 6;

// A rotary base of 500,000 leaves room for documents of a million tokens.
ModelSpec tiny(ModelFamily family, int64_t vocabulary, bool tied) {
  return {.family = family,
          .vocab_size = vocabulary,
          .hidden_size = 256,
          .intermediate_size = 704,
          .num_layers = 4,
          .num_query_heads = 4,
          .num_kv_heads = 2,
          .head_dim = 64,
          .max_position_embeddings = 1 << 20,
          .tied_embeddings = tied,
          .rms_norm_eps = 1e-6,
          .rope = {.theta = 500000}};
}

// Small enough that two CPU cores see it learn within minutes on documents of 32k tokens.
ModelSpec demo_llama() {
  ModelSpec spec = tiny(ModelFamily::kLlama, kByteVocabulary, true);
  spec.hidden_size = 64;
  spec.intermediate_size = 192;
  spec.num_layers = 2;
  spec.num_query_heads = 2;
  spec.num_kv_heads = 1;
  spec.head_dim = 32;
  return spec;
}

ModelSpec bench_llama() {
  ModelSpec spec = tiny(ModelFamily::kLlama, kByteVocabulary, false);
  spec.intermediate_size = 1024;
  return spec;
}

// 1.1 billion parameters: the model of the GPU benchmarks.
ModelSpec bench_llama_1b() {
  return {.family = ModelFamily::kLlama,
          .vocab_size = 32768,
          .hidden_size = 2048,
          .intermediate_size = 8192,
          .num_layers = 16,
          .num_query_heads = 16,
          .num_kv_heads = 4,
          .head_dim = 128,
          .max_position_embeddings = 1 << 20,
          .rms_norm_eps = 1e-5,
          .rope = {.theta = 500000}};
}

ModelSpec llama_8b() {
  return {.family = ModelFamily::kLlama,
          .vocab_size = 128256,
          .hidden_size = 4096,
          .intermediate_size = 14336,
          .num_layers = 32,
          .num_query_heads = 32,
          .num_kv_heads = 8,
          .head_dim = 128,
          .max_position_embeddings = 8192,
          .rms_norm_eps = 1e-5,
          .rope = {.theta = 500000}};
}

ModelSpec llama_34b() {
  return {.family = ModelFamily::kLlama,
          .vocab_size = 32000,
          .hidden_size = 8192,
          .intermediate_size = 22016,
          .num_layers = 48,
          .num_query_heads = 64,
          .num_kv_heads = 16,
          .head_dim = 128,
          .max_position_embeddings = 16384,
          .rms_norm_eps = 1e-5,
          .rope = {.theta = 1000000}};
}

const std::vector<Preset>& presets() {
  static const std::vector<Preset> list = {
      {"llama_tiny", tiny(ModelFamily::kLlama, kByteVocabulary, false)},
      {"qwen3_tiny", tiny(ModelFamily::kQwen3, kByteVocabulary, true)},
      {"nucleotide_tiny", tiny(ModelFamily::kLlama, kNucleotideVocabulary, false)},
      {"llama_demo", demo_llama()},
      {"bench_llama_4x256", bench_llama()},
      {"bench_llama_1b", bench_llama_1b()},
      {"llama_8b", llama_8b()},
      {"llama_34b", llama_34b()},
  };
  return list;
}

}  // namespace

ModelSpec preset_spec(std::string_view name) {
  std::string wanted(name);
  std::replace(wanted.begin(), wanted.end(), '-', '_');
  std::string known;
  for (const Preset& preset : presets()) {
    if (preset.name == wanted) return preset.spec;
    known += text(known.empty() ? "" : ", ", preset.name);
  }
  throw UserError(text("unknown model preset ", name, "; known: ", known));
}

std::vector<std::string> preset_names() {
  std::vector<std::string> names;
  for (const Preset& preset : presets()) names.emplace_back(preset.name);
  return names;
}

}  // namespace longspan
