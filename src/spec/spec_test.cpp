#include <gtest/gtest.h>

#include <set>

#include "base/error.h"
#include "base/random.h"
#include "spec/flops.h"
#include "spec/hf_config.h"
#include "spec/parameter_table.h"
#include "spec/presets.h"

namespace longspan {
namespace {

ModelSpec random_spec(RandomStream& random) {
  ModelSpec spec;
  spec.family = random.below(2) == 0 ? ModelFamily::kLlama : ModelFamily::kQwen3;
  spec.vocab_size = random.between(1, 300);
  spec.hidden_size = random.between(1, 90);
  spec.intermediate_size = random.between(1, 90);
  spec.num_layers = random.between(1, 5);
  spec.num_kv_heads = random.between(1, 4);
  spec.num_query_heads = spec.num_kv_heads * random.between(1, 4);
  spec.head_dim = 2 * random.between(1, 20);
  spec.max_position_embeddings = random.between(1, 5000);
  spec.tied_embeddings = random.below(2) == 0;
  return spec;
}

TEST(ParameterTable, UnitsAndIdsAreConsistent) {
  for (uint64_t seed = 0; seed < 50; ++seed) {
    SCOPED_TRACE(text("seed ", seed));
    RandomStream random(seed, "spec");
    const ModelSpec spec = random_spec(random);
    const ParameterTable table(spec);
    std::set<std::string> names;
    int64_t unit = 0;
    for (size_t i = 0; i < table.parameters().size(); ++i) {
      const Parameter& parameter = table.parameters()[i];
      EXPECT_TRUE(names.insert(parameter.name).second) << parameter.name;
      EXPECT_EQ(table.find(parameter.name), static_cast<int64_t>(i));
      EXPECT_TRUE(parameter.unit == unit || parameter.unit == unit + 1) << "units have a hole";
      unit = parameter.unit;
      EXPECT_EQ(parameter.decayed, parameter.shape.size() == 2);
      EXPECT_EQ(parameter.init == InitKind::kOnes, parameter.shape.size() == 1);
    }
    EXPECT_EQ(unit + 1, table.num_units());
    EXPECT_EQ(table.num_units(), spec.num_layers + 2);
    EXPECT_EQ(table.head() == table.embedding(), spec.tied_embeddings);
    const auto name = [&](int64_t id) {
      return table.parameters().at(static_cast<size_t>(id)).name;
    };
    const LayerParameters& last = table.layer(spec.num_layers - 1);
    const std::string prefix = text("model.layers.", spec.num_layers - 1, ".");
    EXPECT_EQ(name(last.q_proj), prefix + "self_attn.q_proj.weight");
    EXPECT_EQ(name(last.down_proj), prefix + "mlp.down_proj.weight");
    EXPECT_EQ(name(last.input_norm), prefix + "input_layernorm.weight");
    EXPECT_EQ(name(last.post_attention_norm), prefix + "post_attention_layernorm.weight");
    EXPECT_EQ(last.q_norm >= 0, spec.has_head_norms());
    EXPECT_EQ(name(table.final_norm()), "model.norm.weight");
    EXPECT_EQ(table.find("lm_head.weight") >= 0, !spec.tied_embeddings);
  }
}

// Matrix weights are all parameters but norms and the embedding, with a tied head counted once.
TEST(Flops, MatrixWeightsAgreeWithTheTable) {
  for (uint64_t seed = 0; seed < 50; ++seed) {
    SCOPED_TRACE(text("seed ", seed));
    RandomStream random(seed, "flops");
    const ModelSpec spec = random_spec(random);
    const ParameterTable table(spec);
    int64_t weights = 0;
    for (const Parameter& parameter : table.parameters()) {
      if (parameter.shape.size() == 2) weights += parameter.elements();
    }
    if (!spec.tied_embeddings) weights -= table.parameters().front().elements();
    EXPECT_EQ(matrix_weights(spec), weights);
  }
}

TEST(Flops, FollowTheDefinition) {
  const ModelSpec spec = preset_spec("llama-8b");
  EXPECT_EQ(ParameterTable(spec).total_elements(), 8'030'261'248);
  EXPECT_EQ(matrix_weights(spec), 7'504'658'432);
  EXPECT_EQ(causal_pairs(1), 1);
  EXPECT_EQ(causal_pairs(1000), 500'500);
  EXPECT_EQ(causal_pairs(int64_t{1} << 31), (int64_t{1} << 61) + (int64_t{1} << 30));
  const auto pairs = static_cast<double>(causal_pairs(4096));
  EXPECT_DOUBLE_EQ(training_flops(spec, 4096, pairs),
                   6.0 * 7'504'658'432 * 4096 + 12.0 * 32 * 32 * 128 * pairs);
  EXPECT_DOUBLE_EQ(forward_flops(spec, 4096, pairs) * 3, training_flops(spec, 4096, pairs));
}

TEST(ModelSpec, FirstDifferenceNamesTheKeyThatChangesResults) {
  const ModelSpec spec = preset_spec("llama_tiny");
  const auto expect = [&](const auto& change, const std::string& expected) {
    ModelSpec other = spec;
    change(other);
    EXPECT_EQ(first_difference(spec, other), expected);
  };
  expect([](ModelSpec&) {}, "");
  expect([](ModelSpec& other) { other.weight_dtype = "bfloat16"; }, "");
  expect([](ModelSpec& other) { other.max_position_embeddings = 7; }, "");
  expect([](ModelSpec& other) { other.rms_norm_eps = 1e-5; }, "rms_norm_eps is 1e-06, not 1e-05");
  expect([](ModelSpec& other) { other.rope.theta = 10000; }, "rope_theta is 500000, not 10000");
  expect([](ModelSpec& other) { other.rope.beta_fast = 16; }, "the rope parameters differ");
  expect([](ModelSpec& other) { other.tied_embeddings = true; },
         "tie_word_embeddings is false, not true");
  // The same shapes of weights, cut into other heads.
  expect(
      [](ModelSpec& other) {
        other.num_query_heads *= 2;
        other.num_kv_heads *= 2;
        other.head_dim /= 2;
      },
      "num_attention_heads is 4, not 8");
}

TEST(Presets, AreValidAndWriteCompleteConfigurations) {
  EXPECT_GE(preset_names().size(), 6U);
  for (const std::string& name : preset_names()) {
    SCOPED_TRACE(name);
    const ModelSpec spec = preset_spec(name);
    EXPECT_NO_THROW(check_model_spec(spec, name));
    const ModelSpec again = parse_hf_config(hf_config_text(spec, "float32"), name);
    EXPECT_EQ(again.rope, spec.rope);
    EXPECT_EQ(ParameterTable(again).total_elements(), ParameterTable(spec).total_elements());
  }
  EXPECT_EQ(preset_spec("llama_34b").num_layers, 48);
  try {
    preset_spec("llama_tinny");
    FAIL();
  } catch (const UserError& error) {
    EXPECT_NE(std::string(error.what()).find("llama_tiny"), std::string::npos);
  }
}

}  // namespace
}  // namespace longspan
