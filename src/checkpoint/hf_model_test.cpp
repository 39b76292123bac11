#include "checkpoint/hf_model.h"

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <functional>
#include <limits>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "base/random.h"
#include "checkpoint/stored_real.h"
#include "formats/json.h"
#include "formats/test_folder.h"
#include "spec/hf_config.h"
#include "spec/parameter_names.h"
#include "spec/presets.h"

namespace longspan {
namespace {

// Tied, one layer: the embedding is 7 x 6.
ModelSpec tiny_spec() {
  ModelSpec spec;
  spec.vocab_size = 7;
  spec.hidden_size = 6;
  spec.intermediate_size = 5;
  spec.num_layers = 1;
  spec.num_query_heads = 3;
  spec.num_kv_heads = 1;
  spec.head_dim = 2;
  spec.max_position_embeddings = 64;
  spec.tied_embeddings = true;
  return spec;
}

std::vector<Parameter> tiny_parameters() {
  const ParameterTable table(tiny_spec());
  return table.parameters();
}

std::vector<float> random_values(const Parameter& parameter) {
  RandomStream random(3, parameter.name);
  std::vector<float> values(static_cast<size_t>(parameter.elements()));
  for (float& value : values) value = static_cast<float>(random.normal());
  return values;
}

void export_model(const std::filesystem::path& to, const HfExportOptions& options,
                  const ModelSpec& spec = tiny_spec()) {
  HfModelWriter writer(to, spec, options);
  const std::vector<Parameter> parameters = tiny_parameters();
  for (size_t id = 0; id < parameters.size(); ++id) {
    std::vector<float> values = random_values(parameters[id]);
    writer.write(static_cast<int64_t>(id), std::span(values));
  }
  writer.finish();
}

void write_tensors(const std::filesystem::path& path, const std::vector<Parameter>& tensors,
                   StoredDtype dtype = StoredDtype::kF32) {
  std::vector<TensorDescription> descriptions;
  for (const Parameter& t : tensors) descriptions.push_back({t.name, dtype, t.shape});
  SafetensorsWriter writer(path, descriptions);
  for (const TensorDescription& d : descriptions) {
    writer.write(d.name, std::vector<std::byte>(static_cast<size_t>(byte_count(d))));
  }
  writer.finish();
}

std::string message_of(const std::function<void()>& action) {
  try {
    action();
  } catch (const UserError& error) {
    return error.what();
  }
  return "no error";
}

void expect_parts(const std::string& message, const std::vector<std::string>& parts) {
  for (const std::string& part : parts) {
    EXPECT_NE(message.find(part), std::string::npos) << "'" << part << "' not in: " << message;
  }
}

TEST(HfModel, EverySliceReadsBackTheBitsThatWereWritten) {
  const TestFolder test;
  const auto parameters = tiny_parameters();
  for (const int64_t max_shard_bytes : {int64_t{100}, int64_t{1} << 30}) {
    const auto folder = test / text("out", max_shard_bytes);
    export_model(folder, {.max_shard_bytes = max_shard_bytes});
    EXPECT_EQ(std::filesystem::exists(folder / "model.safetensors.index.json"),
              max_shard_bytes == 100);
    const HfWeights weights(folder, tiny_spec(), parameters);
    for (size_t id = 0; id < parameters.size(); ++id) {
      const std::vector<float> expected = random_values(parameters[id]);
      const int64_t elements = parameters[id].elements();
      RandomStream random(5, "slices", id);
      for (int trial = 0; trial < 20; ++trial) {
        const int64_t begin = random.between(0, elements);
        const int64_t end = random.between(begin, elements);
        std::vector<float> narrow_values(static_cast<size_t>(end - begin));
        weights.read(static_cast<int64_t>(id), {begin, end}, std::span(narrow_values));
        std::vector<double> wide_values(narrow_values.size());
        weights.read(static_cast<int64_t>(id), {begin, end}, std::span(wide_values));
        for (size_t i = 0; i < narrow_values.size(); ++i) {
          EXPECT_EQ(narrow_values[i], expected[static_cast<size_t>(begin) + i]);
          EXPECT_EQ(wide_values[i], static_cast<double>(narrow_values[i]));
        }
      }
    }
  }
}

TEST(HfModel, ExportStatesItsDtypeAndCarriesEverythingElse) {
  const TestFolder test;
  test.write("model/tokenizer.json", "{}");
  test.write("model/notes.txt", "not carried");
  Json config = parse_json(hf_config_text(tiny_spec(), "float32"), "config.json");
  config["bos_token_id"] = 5;
  const ModelSpec spec = parse_hf_config(config.dump(2), "config.json");
  export_model(test / "bf16",
               {.dtype = StoredDtype::kBF16, .companions = hf_companion_files(test / "model")},
               spec);
  EXPECT_EQ(read_json(test / "bf16/config.json")["bos_token_id"], 5);
  EXPECT_EQ(load_hf_config(test / "bf16").weight_dtype, "bfloat16");
  EXPECT_EQ(read_text(test / "bf16/tokenizer.json"), "{}");
  EXPECT_FALSE(std::filesystem::exists(test / "bf16/notes.txt"));
  EXPECT_FALSE(std::filesystem::exists(test / "bf16.partial"));
  const SafetensorsSet set(test / "bf16");
  EXPECT_EQ(set.tensor("model.norm.weight").description.dtype, StoredDtype::kBF16);
}

TEST(HfModel, NothingIsOverwrittenAndNothingHalfWrittenStays) {
  const TestFolder test;
  test.write("taken/file", "x");
  EXPECT_NE(message_of([&] {
              HfModelWriter(test / "taken/", tiny_spec(), {});
            }).find("taken is there already"),
            std::string::npos);
  { HfModelWriter abandoned(test / "out", tiny_spec(), {}); }
  EXPECT_FALSE(std::filesystem::exists(test / "out"));
  EXPECT_FALSE(std::filesystem::exists(test / "out.partial"));
  test.write("out.partial/model.safetensors", "of a killed export");
  export_model(test / "out", {});
  EXPECT_NO_THROW(HfWeights(test / "out", tiny_spec(), tiny_parameters()));
}

TEST(HfModel, ErrorsNameTensorAndFile) {
  const TestFolder test;
  const auto file = (test / "model.safetensors").string();
  const auto open = [&] { HfWeights(test.path(), tiny_spec(), tiny_parameters()); };

  auto tensors = tiny_parameters();
  tensors.pop_back();
  write_tensors(file, tensors);
  expect_parts(message_of(open), {"'model.norm.weight' is missing", test.path().string()});

  tensors = tiny_parameters();
  tensors[1].shape = {6, 4};
  write_tensors(file, tensors);
  expect_parts(message_of(open), {file, "q_proj", "[6, 4]", "[6, 6]"});

  tensors = tiny_parameters();
  tensors.push_back({.name = "model.extra.bias", .shape = {1}});
  write_tensors(file, tensors);
  expect_parts(message_of(open), {file, "'model.extra.bias'"});

  write_tensors(file, tiny_parameters(), StoredDtype::kI32);
  expect_parts(message_of(open), {file, "embed_tokens", "I32"});
}

TEST(HfModel, AStoredTiedHeadMustEqualTheEmbedding) {
  const TestFolder test;
  auto tensors = tiny_parameters();
  tensors.push_back({.name = "lm_head.weight", .shape = {7, 6}});
  std::filesystem::create_directories(test / "equal");
  write_tensors(test / "equal/model.safetensors", tensors);
  std::vector<float> slice(4);
  HfWeights(test / "equal", tiny_spec(), tiny_parameters()).read(0, {5, 9}, std::span(slice));

  std::vector<TensorDescription> descriptions;
  for (const Parameter& t : tensors) descriptions.push_back({t.name, StoredDtype::kF32, t.shape});
  std::filesystem::create_directories(test / "other");
  SafetensorsWriter writer(test / "other/model.safetensors", descriptions);
  for (const TensorDescription& d : descriptions) {
    std::vector<std::byte> bytes(static_cast<size_t>(byte_count(d)));
    if (d.name == "lm_head.weight") bytes[4 * 7 + 3] = std::byte{0x3f};  // element 7
    writer.write(d.name, bytes);
  }
  writer.finish();
  const HfWeights other(test / "other", tiny_spec(), tiny_parameters());
  other.read(0, {8, 12}, std::span(slice));
  expect_parts(message_of([&] {
                 other.read(0, {5, 9}, std::span(slice));
               }),
               {"lm_head.weight", "differs", "tie_word_embeddings"});
}

TEST(HfModel, AValueThatIsNotFiniteIsRefusedWhereItIsRead) {
  const TestFolder test;
  const auto parameters = tiny_parameters();
  const size_t bad_id = 3;
  const int64_t bad_element = 2;
  const double kInfinity = std::numeric_limits<double>::infinity();
  // 1e300 is a number in the file, but none in a float32 run.
  for (const double bad : {std::nan(""), kInfinity, -kInfinity, 1e300}) {
    SCOPED_TRACE(bad);
    std::filesystem::remove_all(test / "m");
    HfModelWriter writer(test / "m", tiny_spec(), {.dtype = StoredDtype::kF64});
    for (size_t id = 0; id < parameters.size(); ++id) {
      std::vector<double> values(static_cast<size_t>(parameters[id].elements()), 0.5);
      if (id == bad_id) values[bad_element] = bad;
      writer.write(static_cast<int64_t>(id), std::span(values));
    }
    writer.finish();
    const HfWeights weights(test / "m", tiny_spec(), parameters);
    std::vector<float> narrow_values(4);
    std::vector<double> wide_values(4);
    const auto read = [&](Range elements, auto& values) {
      return message_of([&] { weights.read(bad_id, elements, std::span(values)); });
    };
    expect_parts(read({1, 5}, narrow_values),
                 {"model.safetensors", parameters[bad_id].name, "float32 at element 2;", "finite"});
    EXPECT_EQ(read({1, 5}, wide_values) == "no error", std::isfinite(bad));
    EXPECT_EQ(read({3, 7}, narrow_values), "no error");  // another slice
  }
}

// A model of every kind of layer, with an image part and a prediction layer beside it.
ModelSpec hybrid_spec() {
  ModelSpec spec = preset_spec("glm53_flash_tiny");
  spec.vocab_size = 7;
  spec.hidden_size = 6;
  spec.prediction_layers = 1;
  return spec;
}

std::vector<TensorDescription> carried_descriptions() {
  return {{"model.visual.merger.proj.weight", StoredDtype::kBF16, {3, 2}},
          {"model.language_model.layers.4.eh_proj.weight", StoredDtype::kF8E4M3, {2, 3}},
          {"model.language_model.layers.4.eh_proj.weight_scale_inv", StoredDtype::kF32, {1, 1}}};
}

std::vector<std::byte> carried_bytes(const TensorDescription& tensor) {
  std::vector<std::byte> bytes;
  for (int64_t i = 0; i < byte_count(tensor); ++i) bytes.push_back(static_cast<std::byte>(i + 7));
  return bytes;
}

// A folder such as a release: parameters in bfloat16, and what is not trained here.
void write_release(const std::filesystem::path& folder, const ModelSpec& spec) {
  const ParameterTable table(spec);
  std::filesystem::create_directories(folder);
  write_text_atomic(folder / "config.json", hf_config_text(spec, "bfloat16"));
  std::vector<TensorDescription> tensors = carried_descriptions();
  for (const Parameter& parameter : table.parameters()) {
    tensors.push_back({parameter.name, StoredDtype::kBF16, parameter.shape});
  }
  SafetensorsWriter writer(folder / "model.safetensors", tensors);
  for (const TensorDescription& tensor : tensors) {
    const bool ours = table.find(tensor.name) >= 0;
    writer.write(tensor.name, ours ? std::vector<std::byte>(static_cast<size_t>(byte_count(tensor)))
                                   : carried_bytes(tensor));
  }
  writer.finish();
}

TEST(HfModel, PartsThatAreNotTrainedPassThroughAnExport) {
  const TestFolder test;
  const ModelSpec spec = hybrid_spec();
  write_release(test / "release", spec);
  for (const int64_t group : {1, 3}) {
    const auto to = test / text("out", group);
    const ParameterTable table(spec, group);
    HfModelWriter writer(to, spec,
                         {.dtype = StoredDtype::kBF16,
                          .max_shard_bytes = group == 1 ? 5'000'000'000 : 20'000,
                          .expert_group = group,
                          .carried_from = test / "release"});
    for (size_t id = 0; id < table.parameters().size(); ++id) {
      std::vector<float> values = random_values(table.parameters()[id]);
      writer.write(static_cast<int64_t>(id), std::span(values));
    }
    writer.finish();
    const SafetensorsSet set(to);
    EXPECT_EQ(set.files().size() > 1, group != 1);
    for (const TensorDescription& tensor : carried_descriptions()) {
      EXPECT_EQ(set.tensor(tensor.name).description, tensor);
      const auto bytes = set.tensor(tensor.name).bytes;
      EXPECT_EQ(std::vector<std::byte>(bytes.begin(), bytes.end()), carried_bytes(tensor));
    }
    // What must not be rounded is not, though the rest is.
    for (const Parameter& parameter : table.parameters()) {
      EXPECT_EQ(set.tensor(parameter.name).description.dtype,
                parameter.keep_float32 ? StoredDtype::kF32 : StoredDtype::kBF16)
          << parameter.name;
    }
    const HfWeights weights(to, spec, table.parameters());
    std::vector<float> base(4);
    weights.read(table.layer(0).hyper_ffn_base, {1, 5}, std::span(base));
    const auto expected =
        random_values({.name = "model.language_model.layers.0.hc_ffn_base", .shape = {24}});
    EXPECT_EQ(base, std::vector<float>(expected.begin() + 1, expected.begin() + 5));
  }
  // Names of other models' parts are not known.
  ModelSpec without = spec;
  without.prediction_layers = 0;
  const ParameterTable table(without);
  expect_parts(message_of([&] { HfWeights(test / "release", without, table.parameters()); }),
               {"layers.4.eh_proj", "belongs to no parameter"});
}

TEST(HfModel, DensePartsOfKimiLinearHaveTwoNames) {
  const TestFolder test;
  ModelSpec spec = preset_spec("kimi_linear_tiny");
  spec.vocab_size = 7;
  const ParameterTable table(spec);
  std::vector<Parameter> tensors = table.parameters();
  for (Parameter& tensor : tensors) {
    const std::string other = other_name(spec, tensor.name);
    if (!other.empty()) tensor.name = other;
  }
  write_tensors(test / "model.safetensors", tensors);
  EXPECT_EQ(table.find("model.layers.0.block_sparse_moe.up_proj.weight"), -1);
  std::vector<float> slice(3);
  HfWeights(test.path(), spec, table.parameters())
      .read(table.layer(0).up_proj, {0, 3}, std::span(slice));
}

// 8-bit payloads in blocks of 128 x 128, against the definition.
TEST(HfModel, ScaledBlocksAreWidened) {
  const TestFolder test;
  const std::vector<Parameter> parameters = {{.name = "w.weight", .shape = {200, 300}}};
  const TensorDescription payload{"w.weight", StoredDtype::kF8E4M3, {200, 300}};
  const TensorDescription scales{"w.weight_scale_inv", StoredDtype::kF32, {2, 3}};
  const std::array<float, 6> scale_values = {1, 0.5F, 3.1F, -2, 1e-3F, 7};
  std::vector<std::byte> bytes;
  for (int64_t i = 0; i < 200 * 300; ++i) {
    const auto bits = static_cast<uint8_t>(i * 37 % 251);
    bytes.push_back(static_cast<std::byte>((bits & 0x7f) == 0x7f ? 0 : bits));
  }
  const auto write = [&](const std::vector<TensorDescription>& tensors) {
    std::filesystem::remove(test / "model.safetensors");
    SafetensorsWriter writer(test / "model.safetensors", tensors);
    writer.write(payload.name, bytes);
    if (tensors.size() == 2) {
      writer.write(scales.name, std::as_bytes(std::span(scale_values))
                                    .first(static_cast<size_t>(byte_count(tensors[1]))));
    }
    writer.finish();
  };
  write({payload, scales});
  const HfWeights weights(test.path(), tiny_spec(), parameters);
  RandomStream random(2, "scaled");
  for (int trial = 0; trial < 50; ++trial) {
    const int64_t begin = random.between(0, 200 * 300), end = random.between(begin, 200 * 300);
    std::vector<double> values(static_cast<size_t>(end - begin));
    weights.read(0, {begin, end}, std::span(values));
    for (int64_t i = begin; i < end; i += 7) {
      const auto bits = std::to_integer<int>(bytes[static_cast<size_t>(i)]);
      const int exponent = (bits >> 3) & 15, mantissa = bits & 7;
      double expected =
          exponent == 0 ? std::ldexp(mantissa, -9) : std::ldexp(8 + mantissa, exponent - 10);
      if ((bits & 0x80) != 0) expected = -expected;
      expected *=
          static_cast<double>(scale_values[static_cast<size_t>(i / 300 / 128 * 3 + i % 300 / 128)]);
      ASSERT_EQ(values[static_cast<size_t>(i - begin)], expected) << i;
    }
  }
  const auto open = [&] { HfWeights(test.path(), tiny_spec(), parameters); };
  write({payload});
  expect_parts(message_of(open), {"'w.weight' is F8_E4M3", "w.weight_scale_inv", "[2, 3]"});
  write({payload, {scales.name, StoredDtype::kF32, {3, 2}}});
  expect_parts(message_of(open), {"'w.weight' is F8_E4M3", "[2, 3]"});
  bytes[0] = std::byte{0x7f};
  write({payload, scales});
  std::vector<float> value(1);
  expect_parts(message_of([&] {
                 HfWeights(test.path(), tiny_spec(), parameters).read(0, {0, 1}, std::span(value));
               }),
               {"w.weight", "nan", "finite"});
}

// Every 16-bit pattern, against what the exponent and mantissa mean.
TEST(StoredReal, HalfTypesWidenExactly) {
  for (const StoredDtype dtype : {StoredDtype::kF16, StoredDtype::kBF16}) {
    const int mantissa_bits = dtype == StoredDtype::kF16 ? 10 : 7;
    const int exponent_bits = 15 - mantissa_bits;
    const int bias = (1 << (exponent_bits - 1)) - 1;
    for (uint32_t bits = 0; bits < 65536; ++bits) {
      const std::array<uint16_t, 1> stored = {static_cast<uint16_t>(bits)};
      const TensorDescription description{"x", dtype, {1}};
      std::array<double, 1> value{};
      copy_elements({description, std::as_bytes(std::span(stored))}, {0, 1}, std::span(value));
      const int mantissa = static_cast<int>(bits & ((1u << mantissa_bits) - 1));
      const int exponent = static_cast<int>((bits >> mantissa_bits) & ((1u << exponent_bits) - 1));
      double expected = exponent == 0 ? std::ldexp(mantissa, 1 - bias - mantissa_bits)
                                      : std::ldexp(mantissa + (1 << mantissa_bits),
                                                   exponent - bias - mantissa_bits);
      if (exponent == (1 << exponent_bits) - 1) {
        expected = mantissa == 0 ? std::numeric_limits<double>::infinity() : std::nan("");
      }
      if (std::isnan(expected)) {
        ASSERT_TRUE(std::isnan(value[0])) << bits;
      } else {
        ASSERT_EQ(value[0], (bits & 0x8000u) != 0 ? -expected : expected) << bits;
      }
    }
  }
}

TEST(StoredReal, Bfloat16RoundsOnceToNearestTiesToEven) {
  const auto round = [](double value) {
    std::array<double, 1> values = {value};
    std::string bytes;
    append_elements(std::span(values), StoredDtype::kBF16, bytes);
    const TensorDescription description{"x", StoredDtype::kBF16, {1}};
    copy_elements({description, std::as_bytes(std::span(bytes))}, {0, 1}, std::span(values));
    return values[0];
  };
  for (const double sign : {1.0, -1.0}) {
    EXPECT_EQ(round(sign * (1 + 0x1p-8)), sign * 1.0);                     // tie, to even
    EXPECT_EQ(round(sign * (1 + 3 * 0x1p-8)), sign * (1 + 0x1p-6));        // tie, to even
    EXPECT_EQ(round(sign * (1 + 0x1p-8 + 0x1p-40)), sign * (1 + 0x1p-7));  // twice rounded: 1
    EXPECT_EQ(round(sign * (1 + 3 * 0x1p-8 - 0x1p-40)), sign * (1 + 0x1p-7));
    EXPECT_EQ(round(sign * 1e39), sign * std::numeric_limits<double>::infinity());
    EXPECT_EQ(round(sign * 1e-60), 0.0);
  }
  EXPECT_TRUE(std::isnan(round(std::nan(""))));
  RandomStream random(1, "bf16");
  for (int trial = 0; trial < 2000; ++trial) {
    const double value = random.normal() * std::exp2(random.between(-40, 40));
    const double unit = std::exp2(std::floor(std::log2(std::abs(value))) - 7);
    EXPECT_LE(std::abs(round(value) - value), unit / 2) << value;
    EXPECT_EQ(round(round(value)), round(value));
  }
}

}  // namespace
}  // namespace longspan
