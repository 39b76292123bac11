#include "spec/hf_config.h"

#include <algorithm>
#include <array>
#include <optional>

#include "base/check.h"
#include "spec/hf_fields.h"
#include "spec/hf_hybrid.h"
#include "spec/hf_keys.h"
#include "spec/hf_rope.h"

namespace longspan {
namespace {

// What transformers gives a key that the file leaves out.
struct Family {
  ModelFamily family;
  const char* model_type;
  const char* architecture;
  int64_t head_dim;      // 0: hidden_size / num_attention_heads
  int64_t num_kv_heads;  // 0: num_attention_heads
  int64_t max_position_embeddings;
};
constexpr std::array kFamilies = {
    Family{ModelFamily::kLlama, "llama", "LlamaForCausalLM", 0, 0, 2048},
    Family{ModelFamily::kQwen3, "qwen3", "Qwen3ForCausalLM", 128, 32, 32768},
};

const Family& find_family(const JsonFields& fields) {
  const std::optional<std::string> name = fields.string("model_type");
  std::string known;
  for (const Family& family : kFamilies) {
    if (name && *name == family.model_type) return family;
    known += text(family.model_type, ", ");
  }
  known += kHybridModelTypes;
  throw UserError(text(fields.origin(), ": model_type ",
                       name ? text("\"", *name, "\" is not implemented") : "is missing",
                       "; known: ", known));
}

void check_architecture(const JsonFields& fields, const Family& family) {
  const Json* names = fields.find("architectures");
  if (names == nullptr) return;
  if (!names->is_array() || names->size() != 1 || names->front() != family.architecture) {
    fields.fail("architectures", *names, family.architecture);
  }
}

// All layers attend to the whole document.
void check_attention_kind(const JsonFields& fields, const Family& family) {
  const Json* window = fields.find("sliding_window");
  const bool window_by_default = family.family != ModelFamily::kQwen3;
  if (window != nullptr && fields.boolean("use_sliding_window", window_by_default)) {
    throw UserError(text(fields.origin(), ": sliding_window = ", window->dump(),
                         " is in use: sliding windows are not implemented; set "
                         "use_sliding_window to false"));
  }
  const Json* types = fields.find("layer_types");
  if (types == nullptr) return;
  if (!types->is_array()) fields.fail("layer_types", *types, "a list of strings");
  for (const Json& type : *types) {
    if (type != "full_attention") {
      throw UserError(text(fields.origin(), ": layer_types holds ", type.dump(),
                           "; only \"full_attention\" is implemented"));
    }
  }
  const int64_t layers = fields.required_integer("num_hidden_layers");
  if (static_cast<int64_t>(types->size()) != layers) {
    throw UserError(text(fields.origin(), ": layer_types names ", types->size(),
                         " layers, num_hidden_layers is ", layers));
  }
}

Json plain_config(const ModelSpec& spec) {
  const auto family = std::find_if(kFamilies.begin(), kFamilies.end(),
                                   [&](const Family& row) { return row.family == spec.family; });
  LONGSPAN_CHECK(family != kFamilies.end(), "family without a row");
  Json config;
  config["architectures"] = {family->architecture};
  config["model_type"] = family->model_type;
  config["vocab_size"] = spec.vocab_size;
  config["hidden_size"] = spec.hidden_size;
  config["intermediate_size"] = spec.intermediate_size;
  config["num_hidden_layers"] = spec.num_layers;
  config["num_attention_heads"] = spec.num_query_heads;
  config["num_key_value_heads"] = spec.num_kv_heads;
  config["head_dim"] = spec.head_dim;
  config["hidden_act"] = "silu";
  config["max_position_embeddings"] = spec.max_position_embeddings;
  config["initializer_range"] = spec.initializer_range;
  config["rms_norm_eps"] = spec.rms_norm_eps;
  config["tie_word_embeddings"] = spec.tied_embeddings;
  config["attention_bias"] = false;
  config["attention_dropout"] = 0.0;
  if (spec.family == ModelFamily::kLlama) config["mlp_bias"] = false;
  if (spec.family == ModelFamily::kQwen3) config["use_sliding_window"] = false;
  // transformers 5 reads rope_parameters, transformers 4 the other two.
  const Json rope = hf_rope_parameters(spec.rope);
  config["rope_parameters"] = rope;
  config["rope_theta"] = spec.rope.theta;
  if (spec.rope.type != RopeType::kDefault) config["rope_scaling"] = rope;
  // A byte, base or token has no further role; without null, llama would reserve ids 1 and 2.
  config["bos_token_id"] = nullptr;
  config["eos_token_id"] = nullptr;
  config["pad_token_id"] = nullptr;
  return config;
}

}  // namespace

ModelSpec load_hf_config(const std::filesystem::path& path) {
  std::error_code ignored;
  const bool is_folder = std::filesystem::is_directory(path, ignored);
  const std::filesystem::path file = is_folder ? path / "config.json" : path;
  if (!std::filesystem::exists(file, ignored)) {
    throw UserError(text(is_folder ? file.string() : path.string(),
                         ": no such file; a model is a Hugging Face folder with config.json in "
                         "it, or that file"));
  }
  return parse_hf_config(read_text(file), file.string());
}

namespace {

ModelSpec parse_plain(const Json& config, const std::string& origin) {
  const JsonFields fields(config, origin);
  const Family& family = find_family(fields);
  check_architecture(fields, family);
  check_hf_keys(config, kPlainKeys, origin);
  check_attention_kind(fields, family);
  const std::string activation = fields.string("hidden_act").value_or("silu");
  if (activation != "silu") {
    throw UserError(
        text(origin, ": hidden_act = \"", activation, "\" is not implemented; only \"silu\" is"));
  }

  ModelSpec spec;
  spec.family = family.family;
  spec.vocab_size = fields.required_integer("vocab_size");
  spec.hidden_size = fields.required_integer("hidden_size");
  spec.intermediate_size = fields.required_integer("intermediate_size");
  spec.num_layers = fields.required_integer("num_hidden_layers");
  spec.num_query_heads = fields.required_integer("num_attention_heads");
  // transformers tells a key that is absent from one that is null.
  const bool kv_heads_absent = !config.contains("num_key_value_heads") && family.num_kv_heads > 0;
  spec.num_kv_heads = fields.integer("num_key_value_heads")
                          .value_or(kv_heads_absent ? family.num_kv_heads : spec.num_query_heads);
  const int64_t width_per_head =
      spec.num_query_heads > 0 ? spec.hidden_size / spec.num_query_heads : 0;
  spec.head_dim =
      fields.integer("head_dim").value_or(family.head_dim > 0 ? family.head_dim : width_per_head);
  spec.max_position_embeddings =
      fields.integer("max_position_embeddings").value_or(family.max_position_embeddings);
  spec.tied_embeddings = fields.boolean("tie_word_embeddings", false);
  spec.rms_norm_eps = fields.number("rms_norm_eps", spec.rms_norm_eps);
  spec.initializer_range = fields.number("initializer_range", spec.initializer_range);
  spec.weight_dtype = fields.string(dtype_key(config)).value_or("");
  check_model_spec(spec, origin);
  spec.rope = parse_hf_rope(config, spec.max_position_embeddings, origin);
  return spec;
}

}  // namespace

ModelSpec parse_hf_config(std::string_view source, const std::string& origin) {
  const Json config = parse_json(source, origin);
  if (!config.is_object()) throw UserError(text(origin, ": not a JSON object"));
  const std::string type = JsonFields(config, origin).string("model_type").value_or("");
  ModelSpec spec =
      is_hybrid_model_type(type) ? parse_hf_hybrid(config, origin) : parse_plain(config, origin);
  spec.hf_config = source;
  return spec;
}

std::string hf_config_text(const ModelSpec& spec, std::string_view weight_dtype) {
  Json config;
  if (spec.hf_config.empty()) {
    config = spec.is_hybrid() ? hf_hybrid_config(spec) : plain_config(spec);
  } else {
    config = parse_json(spec.hf_config, "config.json");
    // What is written is not quantised.
    const bool was_quantised = config.erase("quantization_config") > 0;
    if (!was_quantised && weight_dtype == spec.weight_dtype) return spec.hf_config;
  }
  config[dtype_key(config)] = weight_dtype;
  if (Json* text_part = hf_text_part(config)) {
    const char* key = dtype_key(*text_part);
    if (text_part->contains(key)) (*text_part)[key] = weight_dtype;
  }
  return config.dump(2) + "\n";
}

}  // namespace longspan
