// Configurations against what transformers makes of them (tests/golden/hf_configs.json), and what
// is refused.
#include "spec/hf_config.h"

#include <gtest/gtest.h>

#include <bit>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "formats/json.h"
#include "spec/parameter_table.h"
#include "spec/presets.h"

namespace longspan {
namespace {

const std::filesystem::path kGolden =
    std::filesystem::path(LONGSPAN_SOURCE_DIR) / "tests/golden/hf_configs.json";

Json small_llama() {
  return Json::parse(R"({"model_type": "llama", "vocab_size": 96, "hidden_size": 64,
    "intermediate_size": 160, "num_hidden_layers": 2, "num_attention_heads": 4})");
}

ModelSpec parse(const Json& config) {
  return parse_hf_config(config.dump(), "config.json");
}

std::string refusal(const Json& config) {
  try {
    parse(config);
  } catch (const UserError& error) {
    return error.what();
  }
  ADD_FAILURE() << "accepted: " << config.dump();
  return "";
}

// small_llama with one key set, and what the refusal must hold.
void expect_refused(const std::string& key, const Json& value, const std::string& expected) {
  Json config = small_llama();
  config[key] = value;
  EXPECT_NE(refusal(config).find(expected), std::string::npos) << refusal(config);
}

TEST(HfConfig, MatchesTransformers) {
  const Json golden = read_json(kGolden);
  ASSERT_GE(golden.at("cases").size(), 18U);
  for (const Json& entry : golden.at("cases")) {
    SCOPED_TRACE(entry.at("name").get<std::string>());
    const Json& expected = entry.at("expected");
    const ModelSpec spec = parse(entry.at("config"));
    EXPECT_EQ(spec.head_dim, expected.at("head_dim").get<int64_t>());
    EXPECT_EQ(spec.num_kv_heads, expected.at("num_key_value_heads").get<int64_t>());
    EXPECT_EQ(spec.max_position_embeddings, expected.at("max_position_embeddings").get<int64_t>());
    EXPECT_EQ(spec.rms_norm_eps, expected.at("rms_norm_eps").get<double>());
    EXPECT_EQ(spec.initializer_range, expected.at("initializer_range").get<double>());
    EXPECT_EQ(spec.tied_embeddings, expected.at("tie_word_embeddings").get<bool>());
    EXPECT_EQ(spec.weight_dtype, expected.at("dtype").get<std::string>());
    EXPECT_EQ(rope_type_name(spec.rope.type), expected.at("rope_type").get<std::string>());
    EXPECT_EQ(spec.rope.theta, expected.at("rope_theta").get<double>());
  }
}

TEST(HfConfig, RotaryFrequenciesEqualTransformersBitForBit) {
  const Json golden = read_json(kGolden);
  for (const Json& entry : golden.at("cases")) {
    SCOPED_TRACE(entry.at("name").get<std::string>());
    const Json& expected = entry.at("expected");
    const ModelSpec spec = parse(entry.at("config"));
    const RopeFrequencies rope = rope_frequencies(spec.rope, spec.head_dim);
    EXPECT_EQ(rope.attention_scaling, expected.at("attention_scaling").get<double>());
    const auto reference = expected.at("inverse_frequencies").get<std::vector<float>>();
    ASSERT_EQ(rope.inverse.size(), reference.size());
    for (size_t i = 0; i < reference.size(); ++i) {
      EXPECT_EQ(std::bit_cast<uint32_t>(rope.inverse[i]), std::bit_cast<uint32_t>(reference[i]))
          << "frequency " << i << ": " << rope.inverse[i] << " against " << reference[i];
    }
  }
}

TEST(HfConfig, ParametersEqualTransformersInOrder) {
  const Json golden = read_json(kGolden);
  for (const Json& entry : golden.at("cases")) {
    SCOPED_TRACE(entry.at("name").get<std::string>());
    Json ours = Json::array();
    const ParameterTable table(parse(entry.at("config")));
    for (const Parameter& parameter : table.parameters()) {
      ours.push_back(Json::array({parameter.name, parameter.shape}));
    }
    EXPECT_EQ(ours, entry.at("expected").at("parameters"));
  }
}

TEST(HfConfig, WrittenTextReadsBackToTheSameSpec) {
  const Json golden = read_json(kGolden);
  for (const Json& entry : golden.at("cases")) {
    SCOPED_TRACE(entry.at("name").get<std::string>());
    ModelSpec spec = parse(entry.at("config"));
    // As if it were a preset: written from the values, not from the original.
    spec.hf_config.clear();
    const ModelSpec again = parse_hf_config(hf_config_text(spec, "float32"), "written");
    EXPECT_EQ(again.rope, spec.rope);
    EXPECT_EQ(again.head_dim, spec.head_dim);
    EXPECT_EQ(again.num_kv_heads, spec.num_kv_heads);
    EXPECT_EQ(again.tied_embeddings, spec.tied_embeddings);
    EXPECT_EQ(again.rms_norm_eps, spec.rms_norm_eps);
    EXPECT_EQ(again.weight_dtype, "float32");
  }
}

TEST(HfConfig, ExportCarriesTheOriginalThrough) {
  Json config = small_llama();
  config["torch_dtype"] = "bfloat16";
  config["eos_token_id"] = {1, 2};
  const std::string original = config.dump();
  const ModelSpec spec = parse_hf_config(original, "config.json");
  EXPECT_EQ(hf_config_text(spec, "bfloat16"), original);
  const Json exported = parse_json(hf_config_text(spec, "float32"), "exported");
  config["torch_dtype"] = "float32";
  EXPECT_EQ(exported, config);
}

TEST(HfConfig, RefusesWhatIsNotImplementedByName) {
  expect_refused("model_type", "mamba",
                 "model_type \"mamba\" is not implemented; known: llama, qwen3");
  expect_refused("architectures", {"LlamaForSequenceClassification"}, "LlamaForCausalLM");
  expect_refused("hidden_act", "gelu", "hidden_act");
  expect_refused("attention_bias", true, "attention_bias = true");
  expect_refused("mlp_bias", true, "mlp_bias");
  expect_refused("attention_dropout", 0.1, "attention_dropout = 0.1");
  expect_refused("quantization_config", {{"bits", 4}}, "quantization_config");
  expect_refused("sliding_window", 4096, "sliding_window = 4096");
  expect_refused("layer_types", {"full_attention", "sliding_attention"}, "sliding_attention");
  expect_refused("layer_types", {"full_attention"}, "num_hidden_layers is 2");
  expect_refused("pretraining_tp", 2, "pretraining_tp");
  expect_refused("partial_rotary_factor", 0.5, "partial_rotary_factor");
  expect_refused("frobnicate", 1, "unknown key frobnicate = 1");
  Json qwen3 = small_llama();
  qwen3["model_type"] = "qwen3";
  qwen3["num_key_value_heads"] = 2;
  qwen3["sliding_window"] = 128;
  EXPECT_NO_THROW(parse(qwen3));
  qwen3["use_sliding_window"] = true;
  EXPECT_NE(refusal(qwen3).find("sliding_window"), std::string::npos);
}

TEST(HfConfig, AcceptsFeaturesThatAreOff) {
  Json config = small_llama();
  config["attention_bias"] = false;
  config["attention_dropout"] = 0;
  config["quantization_config"] = nullptr;
  config["pruned_heads"] = Json::object();
  config["layer_types"] = {"full_attention", "full_attention"};
  config["sliding_window"] = nullptr;
  config["pretraining_tp"] = 1;
  EXPECT_NO_THROW(parse(config));
}

TEST(HfConfig, RefusesRopeItCannotDo) {
  expect_refused("rope_scaling", {{"rope_type", "longrope"}}, "longrope");
  expect_refused("rope_scaling", {{"type", "dynamic"}, {"factor", 2.0}}, "dynamic");
  expect_refused("rope_scaling", {{"type", "linear"}}, "factor is missing");
  expect_refused("rope_scaling", {{"type", "linear"}, {"factor", 0.5}}, "at least 1");
  expect_refused("rope_scaling", {{"type", "linear"}, {"factor", "2"}}, "a number");
  expect_refused("rope_scaling", {{"type", "linear"}, {"factor", 2}, {"beta_fast", 32}},
                 "beta_fast");
  expect_refused("rope_scaling", {{"type", "default"}, {"mrope_section", {1, 2}}}, "mrope_section");
  expect_refused(
      "rope_scaling",
      {{"type", "llama3"}, {"factor", 8}, {"low_freq_factor", 4}, {"high_freq_factor", 1}},
      "high_freq_factor");
  expect_refused("rope_scaling", {{"type", "yarn"}, {"factor", 8}, {"mscale", -1}}, "mscale");
  expect_refused("rope_parameters", {{"partial_rotary_factor", 0.5}}, "partial_rotary_factor");
  expect_refused("rope_parameters", 3, "object");
  expect_refused("rope_theta", 0, "rope_theta");
  expect_refused("rope_parameters",
                 {{"full_attention", {{"rope_theta", 1e6}}}, {"sliding_attention", {{"a", 1}}}},
                 "sliding_attention");
  Json both = small_llama();
  both["rope_scaling"] = {{"type", "linear"}, {"factor", 2.0}};
  both["rope_parameters"] = {{"rope_type", "linear"}, {"factor", 4.0}};
  EXPECT_NE(refusal(both).find("contradict"), std::string::npos);
  both["rope_parameters"]["factor"] = 2;
  EXPECT_EQ(parse(both).rope.factor, 2.0);
}

TEST(HfConfig, ReadsRopeUnderTheLayerType) {
  Json config = small_llama();
  config["rope_parameters"] = {{"full_attention", {{"rope_type", "default"}, {"rope_theta", 1e6}}},
                               {"sliding_attention", nullptr}};
  EXPECT_EQ(parse(config).rope.theta, 1e6);
}

TEST(HfConfig, YarnFactorFromTheLengths) {
  Json config = small_llama();
  config["max_position_embeddings"] = 65536;
  config["rope_scaling"] = {
      {"type", "yarn"}, {"factor", nullptr}, {"original_max_position_embeddings", 4096}};
  EXPECT_EQ(parse(config).rope.factor, 16.0);
}

TEST(HfConfig, RefusesBrokenFiles) {
  for (const char* key : {"vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers",
                          "num_attention_heads", "model_type"}) {
    Json config = small_llama();
    config.erase(key);
    EXPECT_NE(refusal(config).find(key), std::string::npos);
    config[key] = true;
    EXPECT_NE(refusal(config).find(key), std::string::npos);
  }
  expect_refused("vocab_size", 0, "vocab_size = 0");
  expect_refused("num_hidden_layers", -1, "num_hidden_layers");
  expect_refused("num_attention_heads", 0, "num_attention_heads");
  expect_refused("hidden_size", 64.5, "whole number");
  expect_refused("vocab_size", 18446744073709551615ULL, "whole number");
  expect_refused("vocab_size", 9223372036854775807LL, "vocab_size");
  expect_refused("num_key_value_heads", 3, "multiple");
  expect_refused("head_dim", 15, "odd");
  expect_refused("rms_norm_eps", 0, "rms_norm_eps");
  expect_refused("tie_word_embeddings", "yes", "true or false");
  EXPECT_THROW(parse_hf_config("[]", "x"), UserError);
  EXPECT_THROW(parse_hf_config("{\"model_type\": ", "x"), UserError);
  EXPECT_THROW(load_hf_config("no/such/folder"), UserError);
}

}  // namespace
}  // namespace longspan
