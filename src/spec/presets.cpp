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

// Three layers of linear attention, one of sparse attention, and so on; the first are dense.
std::vector<LayerKind> glm_layers(int64_t layers, int64_t dense) {
  std::vector<LayerKind> kinds;
  for (int64_t i = 0; i < layers; ++i) {
    kinds.push_back(
        {i % 4 == 3 ? MixKind::kSparseAttention : MixKind::kLinearAttention, i >= dense});
  }
  return kinds;
}

// The text part of the released model.
ModelSpec glm53_flash() {
  return {.family = ModelFamily::kGlm5Next,
          .vocab_size = 154880,
          .hidden_size = 4096,
          .intermediate_size = 12288,
          .num_layers = 45,
          .num_query_heads = 64,
          .num_kv_heads = 64,
          .head_dim = 256,
          .max_position_embeddings = 1 << 20,
          .rms_norm_eps = 1e-5,
          .layer_kinds = glm_layers(45, 3),
          .linear_attention = {.num_heads = 64,
                               .head_dim = 128,
                               .conv_taps = 4,
                               .gate = DecayGateKind::kBounded,
                               .gate_lower_bound = -5},
          .latent_attention = {.num_heads = 64,
                               .q_lora_rank = 1536,
                               .kv_lora_rank = 512,
                               .nope_dim = 256,
                               .v_dim = 256,
                               .norm_eps = 1e-5},
          .index = {.num_heads = 32, .head_dim = 128, .topk = 2048, .pool = 4},
          .experts =
              {.num_experts = 288, .top_k = 8, .num_shared = 1, .width = 2048, .route_scale = 2.5},
          .hyper = {.streams = 4, .sinkhorn_iterations = 20, .eps = 1e-6},
          .swiglu_limit = 10};
}

// The released widths in one block of four layers with 16 experts. 3.24 billion parameters: with
// weights, gradients and both moments in float32 and a copy of the weights in bfloat16, 18 bytes
// each, they take 54.4 of an H200's 139 GiB, and the rest is for tokens.
ModelSpec glm53_flash_mini() {
  ModelSpec spec = glm53_flash();
  spec.num_layers = 4;
  spec.layer_kinds = glm_layers(4, 1);
  spec.experts.num_experts = 16;
  return spec;
}

// For two CPU cores; documents of more than 128 tokens make the index choose.
ModelSpec glm53_flash_tiny() {
  ModelSpec spec = glm53_flash();
  spec.vocab_size = kByteVocabulary;
  spec.hidden_size = 128;
  spec.intermediate_size = 256;
  spec.num_layers = 4;
  spec.layer_kinds = glm_layers(4, 1);
  spec.num_query_heads = spec.num_kv_heads = 4;
  spec.head_dim = 32;
  spec.linear_attention.num_heads = 4;
  spec.linear_attention.head_dim = 32;
  spec.latent_attention.num_heads = 4;
  spec.latent_attention.q_lora_rank = 64;
  spec.latent_attention.kv_lora_rank = 64;
  spec.latent_attention.nope_dim = 32;
  spec.latent_attention.v_dim = 32;
  spec.index = {.num_heads = 4, .head_dim = 32, .topk = 128, .pool = 4};
  spec.experts.num_experts = 8;
  spec.experts.top_k = 2;
  spec.experts.width = 64;
  return spec;
}

ModelSpec kimi_linear_tiny() {
  ModelSpec spec = glm53_flash_tiny();
  spec.family = ModelFamily::kKimiLinear;
  for (LayerKind& kind : spec.layer_kinds) {
    if (kind.mix == MixKind::kSparseAttention) kind.mix = MixKind::kAttention;
  }
  spec.head_dim = 48;
  spec.linear_attention.gate = DecayGateKind::kSoftplus;
  spec.linear_attention.gate_lower_bound = 0;
  spec.latent_attention.q_lora_rank = 0;
  spec.latent_attention.rope_dim = 16;
  spec.latent_attention.norm_eps = 1e-6;
  spec.index = {};
  spec.experts.route_scale = 2.446;
  spec.hyper = {};
  spec.swiglu_limit = 0;
  return spec;
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
      {"glm53_flash", glm53_flash()},
      {"glm53_flash_mini", glm53_flash_mini()},
      {"glm53_flash_tiny", glm53_flash_tiny()},
      {"kimi_linear_tiny", kimi_linear_tiny()},
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
