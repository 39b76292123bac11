// The hybrid families: parameters with their units, FLOPs, configurations and what is refused.
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "base/random.h"
#include "formats/json.h"
#include "spec/flops.h"
#include "spec/hf_config.h"
#include "spec/parameter_names.h"
#include "spec/parameter_table.h"
#include "spec/presets.h"

namespace longspan {
namespace {

const char* const kPresets[] = {"glm53_flash_tiny", "kimi_linear_tiny"};

Json config_of(const std::string& preset) {
  return Json::parse(hf_config_text(preset_spec(preset), "float32"));
}

std::string refusal(const Json& config) {
  try {
    parse_hf_config(config.dump(), "config.json");
  } catch (const UserError& error) {
    return error.what();
  }
  ADD_FAILURE() << "accepted: " << config.dump();
  return "";
}

void expect_refused(const Json& config, const std::string& expected) {
  const std::string message = refusal(config);
  EXPECT_NE(message.find(expected), std::string::npos) << message;
}

int64_t count(const ParameterTable& table, const std::string& part) {
  int64_t sum = 0;
  for (const Parameter& parameter : table.parameters()) {
    if (parameter.name.find(part) != std::string::npos) sum += parameter.elements();
  }
  return sum;
}

// Published counts of the released checkpoint.
TEST(HybridParameters, CountThoseOfTheRelease) {
  const ModelSpec spec = preset_spec("glm53_flash");
  const ParameterTable table(spec);
  EXPECT_EQ(table.total_elements(), 313'326'811'966);
  EXPECT_EQ(count(table, "embed_tokens"), 634'388'480);
  EXPECT_EQ(count(table, ".hc_"), 35'391'870);
  EXPECT_EQ(count(table, ".indexer."), 82'190'592);
  EXPECT_EQ(count(table, "mlp.experts."), 304'405'807'104);
  EXPECT_EQ(count(table, ".shared_experts."), 1'056'964'608);
  EXPECT_EQ(count(table, "mlp.gate."), 49'557'312);
  int64_t linear = 0, sparse = 0;
  for (int64_t i = 0; i < spec.num_layers; ++i) {
    const int64_t here = count(table, text(".layers.", i, ".self_attn."));
    (spec.layer_kind(i).mix == MixKind::kLinearAttention ? linear : sparse) += here;
  }
  EXPECT_EQ(linear, 4'682'897'792);
  EXPECT_EQ(sparse, 1'291'868'160 + 82'190'592);
  // By layer: residual streams and norms, then attention, then the feed-forward part.
  const auto tensors = std::ssize(table.parameters());
  EXPECT_EQ(tensors, 3 + 45 * (6 + 2) + 34 * 15 + 11 * 14 + 3 * 3 + 42 * (2 + 3 + 864));
}

TEST(HybridParameters, UnitsOfExpertsFollowTheOthers) {
  for (const char* preset : kPresets) {
    for (const int64_t group : {1, 2, 3, 8}) {
      SCOPED_TRACE(text(preset, " in expert groups of ", group));
      const ModelSpec spec = preset_spec(preset);
      const ParameterTable table(spec, group);
      EXPECT_EQ(table.expert_group(), group);
      EXPECT_EQ(table.num_units(), spec.num_layers + 2 + group * spec.count_expert_layers());
      int64_t unit = 0;
      for (const Parameter& parameter : table.parameters()) {
        EXPECT_TRUE(parameter.unit == unit || parameter.unit == unit + 1) << "units have a hole";
        unit = parameter.unit;
        EXPECT_EQ(parameter.expert_block >= 0, unit >= spec.num_layers + 2);
      }
      int64_t expected_unit = spec.num_layers + 2;
      for (int64_t layer = 0; layer < spec.num_layers; ++layer) {
        if (!spec.layer_kind(layer).has_experts) {
          EXPECT_THROW(table.experts(layer, 0), InternalError);
          continue;
        }
        int64_t next_expert = 0;
        for (int64_t block = 0; block < group; ++block) {
          const ExpertParameters& ids = table.experts(layer, block);
          EXPECT_EQ(ids.unit, expected_unit++);
          EXPECT_EQ(table.expert_unit(layer, block), ids.unit);
          EXPECT_EQ(ids.experts.begin, next_expert);
          EXPECT_EQ(ids.up, ids.gate + ids.experts.size());
          EXPECT_EQ(ids.down, ids.up + ids.experts.size());
          for (int64_t expert = ids.experts.begin; expert < ids.experts.end; ++expert) {
            const auto& down =
                table.parameters().at(static_cast<size_t>(ids.down + expert - ids.experts.begin));
            EXPECT_EQ(down.expert_block, block);
            EXPECT_EQ(down.unit, ids.unit);
            EXPECT_EQ(down.shape, (std::vector<int64_t>{spec.hidden_size, spec.experts.width}));
            EXPECT_NE(down.name.find(text(".experts.", expert, ".")), std::string::npos);
          }
          next_expert = ids.experts.end;
        }
        EXPECT_EQ(next_expert, spec.experts.num_experts);
      }
      EXPECT_EQ(table.total_elements(), ParameterTable(spec).total_elements());
    }
    EXPECT_THROW(ParameterTable(preset_spec(preset), 9), UserError);
  }
}

// What is frozen, kept in float32, decayed; and how each begins.
TEST(HybridParameters, KindsOfParameters) {
  for (const char* preset : kPresets) {
    SCOPED_TRACE(preset);
    const ModelSpec spec = preset_spec(preset);
    const ParameterTable table(spec);
    std::map<InitKind, int64_t> kinds;
    for (const Parameter& parameter : table.parameters()) {
      SCOPED_TRACE(parameter.name);
      const auto holds = [&](const char* part) {
        return parameter.name.find(part) != std::string::npos;
      };
      ++kinds[parameter.init];
      EXPECT_EQ(parameter.trained, !holds(".indexer.") && !holds("e_score_correction_bias"));
      EXPECT_EQ(parameter.keep_float32, holds("A_log") || holds("dt_bias") || holds("_base") ||
                                            holds("_scale") || holds("e_score_correction_bias"));
      EXPECT_EQ(parameter.decayed, parameter.shape.size() == 2 && parameter.trained);
      EXPECT_EQ(parameter.init == InitKind::kTimeStepBias, holds("dt_bias"));
      EXPECT_EQ(table.find(parameter.name), &parameter - table.parameters().data());
    }
    const bool softplus = spec.linear_attention.gate == DecayGateKind::kSoftplus;
    EXPECT_EQ(kinds[InitKind::kDecayRate], softplus ? 3 : 0);
  }
  const ParameterTable kimi(preset_spec("kimi_linear_tiny"));
  const auto& decay = kimi.parameters().at(static_cast<size_t>(kimi.layer(0).decay_rate));
  EXPECT_EQ(decay.name, "model.layers.0.self_attn.A_log");
  EXPECT_EQ(decay.shape, (std::vector<int64_t>{1, 1, 4, 1}));
}

TEST(HybridParameters, CarriedTensorsAndOtherNames) {
  ModelSpec spec = preset_spec("glm53_flash");
  const std::string prediction = "model.language_model.layers.45.eh_proj.weight";
  EXPECT_FALSE(is_carried_tensor(spec, prediction));
  spec.prediction_layers = 1;
  EXPECT_TRUE(is_carried_tensor(spec, prediction));
  EXPECT_TRUE(is_carried_tensor(spec, "model.visual.blocks.0.norm1.weight"));
  EXPECT_FALSE(is_carried_tensor(spec, "model.language_model.layers.46.eh_proj.weight"));
  EXPECT_FALSE(is_carried_tensor(spec, "model.language_model.layers.4.mlp.gate.weight"));
  EXPECT_FALSE(is_carried_tensor(preset_spec("llama_tiny"), "model.visual.x"));
  const ModelSpec kimi = preset_spec("kimi_linear_tiny");
  EXPECT_EQ(other_name(kimi, "model.layers.0.mlp.up_proj.weight"),
            "model.layers.0.block_sparse_moe.up_proj.weight");
  EXPECT_EQ(other_name(kimi, "model.norm.weight"), "");
  EXPECT_EQ(other_name(spec, "model.language_model.layers.0.mlp.up_proj.weight"), "");
}

// Weights in matrix products, from the table itself.
TEST(HybridFlops, MatrixWeightsAgreeWithTheTable) {
  for (const char* preset :
       {"glm53_flash", "glm53_flash_mini", "glm53_flash_tiny", "kimi_linear_tiny"}) {
    SCOPED_TRACE(preset);
    const ModelSpec spec = preset_spec(preset);
    const ParameterTable table(spec);
    int64_t weights = 0;
    for (const Parameter& parameter : table.parameters()) {
      const bool is_table = parameter.name.ends_with("_ape") || parameter.shape.size() != 2;
      if (is_table || parameter.expert_block >= 0) continue;
      weights += parameter.elements();
    }
    weights -= table.parameters().front().elements();
    weights +=
        3 * spec.count_expert_layers() * spec.experts.top_k * spec.experts.width * spec.hidden_size;
    EXPECT_EQ(matrix_weights(spec), weights);
  }
}

TEST(HybridFlops, OfTheReleasePerToken) {
  const ModelSpec spec = preset_spec("glm53_flash");
  // The published figure counts filters and norms, too.
  EXPECT_NEAR(static_cast<double>(matrix_weights(spec)), 16.742e9, 0.005e9);
  const std::pair<int64_t, double> published[] = {
      {16384, 110.7}, {262144, 113.5}, {1048576, 122.3}};
  for (const auto& [tokens, gflop] : published) {
    const double each =
        training_flops(spec, document_work(spec, tokens)) / 1e9 / static_cast<double>(tokens);
    // The shortest has a visible share of queries that see fewer keys than they may select.
    EXPECT_NEAR(each, gflop, tokens < 100000 ? 0.7 : 0.15) << tokens;
  }
}

TEST(HybridFlops, WorkIsTheSumOverQueries) {
  for (uint64_t seed = 0; seed < 60; ++seed) {
    SCOPED_TRACE(text("seed ", seed));
    RandomStream random(seed, "work");
    ModelSpec spec = preset_spec("glm53_flash_tiny");
    spec.index.pool = random.between(1, 5);
    spec.index.topk = spec.index.pool * random.between(1, 9);
    const int64_t tokens = random.between(1, 100);
    int64_t selected = 0, scored = 0;
    for (int64_t seen = 1; seen <= tokens; ++seen) {
      selected += std::min(seen, spec.index.topk + seen % spec.index.pool);
      scored += seen / spec.index.pool;
    }
    const ModelWork work = document_work(spec, tokens);
    EXPECT_EQ(work.selected_pairs, static_cast<double>(selected));
    EXPECT_EQ(work.scored_pools, static_cast<double>(scored));
    EXPECT_EQ(work.pairs, static_cast<double>(causal_pairs(tokens)));
  }
  EXPECT_THROW(training_flops(preset_spec("glm53_flash_tiny"), 10, 55), InternalError);
}

TEST(HybridConfig, IsWrittenAndReadAlike) {
  for (const char* preset :
       {"glm53_flash", "glm53_flash_mini", "glm53_flash_tiny", "kimi_linear_tiny"}) {
    SCOPED_TRACE(preset);
    const ModelSpec spec = preset_spec(preset);
    const ModelSpec again = parse_hf_config(hf_config_text(spec, "bfloat16"), preset);
    EXPECT_EQ(first_difference(spec, again), "");
    EXPECT_EQ(again.weight_dtype, "bfloat16");
    // An export with other weights keeps every key and changes the type.
    const ModelSpec wider = parse_hf_config(hf_config_text(again, "float32"), preset);
    EXPECT_EQ(first_difference(spec, wider), "");
    EXPECT_EQ(wider.weight_dtype, "float32");
  }
}

TEST(HybridConfig, OtherSpellingsMeanTheSame) {
  const ModelSpec spec = preset_spec("glm53_flash_tiny");
  Json config = config_of("glm53_flash_tiny");
  const auto expect_same = [&](const Json& other) {
    EXPECT_EQ(first_difference(spec, parse_hf_config(other.dump(), "config.json")), "");
  };
  config["model_type"] = "glm53_flash";
  config["text_config"]["model_type"] = "glm53_flash_text";
  expect_same(config);
  // transformers writes keys of its own instead of linear_attn_config.
  Json own = config;
  Json& part = own["text_config"];
  for (const char* key : {"num_heads", "head_dim"}) {
    part[std::string("linear_") + key] = part["linear_attn_config"][key];
  }
  part["linear_conv_kernel_dim"] = 4;
  part["linear_lower_bound"] = -5.0;
  part["indexer_types"] = Json::array({"full", "full", "full", "full"});
  expect_same(own);
  part.erase("linear_attn_config");
  expect_same(own);
  part.erase("layer_types");
  expect_same(own);
  // All in one object.
  Json flat = config["text_config"];
  flat["model_type"] = "glm5_next";
  expect_same(flat);
  // Kimi-Linear in transformers' other names.
  Json kimi = config_of("kimi_linear_tiny");
  for (const auto& [from, to] :
       std::map<std::string, std::string>{{"model_max_length", "max_position_embeddings"},
                                          {"num_experts", "num_local_experts"},
                                          {"num_experts_per_token", "num_experts_per_tok"},
                                          {"num_shared_experts", "n_shared_experts"}}) {
    kimi[to] = kimi[from];
    kimi.erase(from);
  }
  kimi["head_dim"] = 16;
  EXPECT_EQ(first_difference(preset_spec("kimi_linear_tiny"),
                             parse_hf_config(kimi.dump(), "config.json")),
            "");
}

// As transformers reads the bound of the decay: by key, value, and whether the gate is safe.
TEST(HybridConfig, BoundsOfTheDecay) {
  const auto bound = [](const auto& change) {
    Json config = config_of("glm53_flash_tiny");
    Json& part = config["text_config"];
    part.erase("linear_attn_config");
    part["linear_num_heads"] = 4;
    part["linear_head_dim"] = 32;
    change(part);
    const auto linear = parse_hf_config(config.dump(), "config.json").linear_attention;
    return linear.gate == DecayGateKind::kBounded ? linear.gate_lower_bound : 0.0;
  };
  EXPECT_EQ(bound([](Json&) {}), -5);
  EXPECT_EQ(bound([](Json& part) { part["linear_lower_bound"] = -3; }), -3);
  EXPECT_EQ(bound([](Json& part) { part["linear_lower_bound"] = nullptr; }), 0);
  EXPECT_EQ(bound([](Json& part) { part["linear_attn_config"] = Json::object(); }), -5);
  EXPECT_EQ(bound([](Json& part) { part["linear_attn_config"]["gate_lower_bound"] = nullptr; }),
            -5);
  EXPECT_EQ(bound([](Json& part) {
              part["linear_attn_config"] = {{"gate_lower_bound", nullptr}, {"safe_gate", false}};
            }),
            0);
  EXPECT_EQ(bound([](Json& part) {
              part["linear_lower_bound"] = nullptr;
              part["linear_attn_config"]["head_dim"] = 32;
            }),
            -5);
  EXPECT_EQ(bound([](Json& part) { part["linear_attn_config"]["safe_gate"] = false; }), -5);
}

TEST(HybridConfig, QuantisedWeightsAreAcceptedInOneForm) {
  Json config = config_of("glm53_flash_tiny");
  config["quantization_config"] = {{"quant_method", "fp8"},
                                   {"fmt", "e4m3"},
                                   {"activation_scheme", "dynamic"},
                                   {"weight_block_size", {128, 128}}};
  const ModelSpec spec = parse_hf_config(config.dump(), "config.json");
  EXPECT_FALSE(Json::parse(hf_config_text(spec, "float32")).contains("quantization_config"));
  config["quantization_config"]["weight_block_size"] = {64, 64};
  expect_refused(config, "weight_block_size");
  config["quantization_config"] = {{"quant_method", "gptq"}};
  expect_refused(config, "quant_method");
}

// Every key of the text part that changes the mathematics, with a value that is not implemented.
TEST(HybridConfig, RefusesOtherMathematicsByName) {
  const std::pair<const char*, Json> glm[] = {
      {"attention_bias", true},
      {"hidden_act", "gelu"},
      {"index_kpool_compress", false},
      {"index_kpool_always_select_tail", false},
      {"index_topk", 130},
      {"index_topk_freq", 2},
      {"indexer_types", {"full", "full", "full", "shared"}},
      {"mhc", false},
      {"hc_mult", 1},
      {"mla_use_nope", false},
      {"moe_router_dtype", "bfloat16"},
      {"n_group", 2},
      {"norm_topk_prob", false},
      {"num_key_value_heads", 2},
      {"q_lora_rank", nullptr},
      {"qk_rope_head_dim", 64},
      {"qk_head_dim", 33},
      {"rope_scaling", {{"type", "yarn"}}},
      {"scoring_func", "softmax"},
      {"swiglu_limit", 0},
      {"tie_word_embeddings", true},
      {"topk_group", 2},
      {"topk_method", "greedy"},
      {"output_router_logits", true},
      {"first_k_dense_replace", 2},
      {"num_experts_per_tok", 9},
      {"linear_num_heads", 8},
      {"linear_lower_bound", -4.0},
      {"surprise", 1},
      {"layer_types", {"linear_attention"}},
      {"hc_eps", 0.0},
      {"num_hidden_layers", 5000},
  };
  for (const auto& [key, value] : glm) {
    SCOPED_TRACE(key);
    Json config = config_of("glm53_flash_tiny");
    config["text_config"][key] = value;
    expect_refused(config, key);
  }
  const std::pair<const char*, Json> kimi[] = {
      {"moe_renormalize", false},
      {"num_expert_group", 2},
      {"num_nextn_predict_layers", 1},
      {"moe_router_activation_func", "softmax"},
      {"mla_use_nope", false},
      {"q_lora_rank", 0},
      {"num_experts_per_tok", 4},
      {"tie_word_embeddings", true},
      {"quantization_config", {{"quant_method", "fp8"}}},
      {"index_topk", 64},
  };
  for (const auto& [key, value] : kimi) {
    SCOPED_TRACE(key);
    Json config = config_of("kimi_linear_tiny");
    config[key] = value;
    expect_refused(config, key);
  }
}

TEST(HybridConfig, ListsOfLayersMustAgree) {
  Json config = config_of("glm53_flash_tiny");
  Json& linear = config["text_config"]["linear_attn_config"];
  linear["kda_layers"] = {0, 1, 3};
  linear["full_attn_layers"] = {2};
  expect_refused(config, "disagree about layer 2");
  linear["full_attn_layers"] = {2, 3};
  expect_refused(config, "layer 3 twice");
  linear["full_attn_layers"] = {4};
  expect_refused(config, "numbered from 0 to 3");
  linear["full_attn_layers"] = Json::array();
  expect_refused(config, "layer 2 is neither in kda_layers nor");
  linear.erase("full_attn_layers");
  expect_refused(config, "only one of kda_layers and full_attn_layers");
  linear.erase("kda_layers");
  linear["gate_lower_bound"] = 1.0;
  expect_refused(config, "gate_lower_bound");
  // Kimi-Linear counts from 1.
  Json kimi = config_of("kimi_linear_tiny");
  EXPECT_EQ(kimi["linear_attn_config"]["full_attn_layers"], Json::array({4}));
  kimi["linear_attn_config"]["full_attn_layers"] = {0};
  expect_refused(kimi, "numbered from 1 to 4");
}

TEST(HybridConfig, FirstDifferenceNamesTheParts) {
  const ModelSpec spec = preset_spec("glm53_flash_tiny");
  const auto expect = [&](const auto& change, const std::string& expected) {
    ModelSpec other = spec;
    change(other);
    EXPECT_EQ(first_difference(spec, other), expected);
  };
  expect([](ModelSpec&) {}, "");
  expect([](ModelSpec& other) { other.index.topk = 64; }, "the keys of the index differ");
  expect([](ModelSpec& other) { other.layer_kinds[0].has_experts = true; },
         "the kinds of the layers differ");
  expect([](ModelSpec& other) { other.linear_attention.gate_lower_bound = -4; },
         "the keys of linear attention differ");
  expect([](ModelSpec& other) { other.latent_attention.v_dim = 1; },
         "the keys of latent attention differ");
  expect([](ModelSpec& other) { other.experts.route_scale = 1; }, "the keys of the experts differ");
  expect([](ModelSpec& other) { other.hyper.eps = 1e-5; },
         "the keys of the residual streams differ");
  expect([](ModelSpec& other) { other.swiglu_limit = 7; }, "swiglu_limit is 10, not 7");
}

}  // namespace
}  // namespace longspan
