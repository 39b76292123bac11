#include "spec/hf_keys.h"

#include <algorithm>
#include <array>
#include <nlohmann/json.hpp>
#include <string_view>

#include "base/error.h"

namespace longspan {
namespace {

constexpr std::array kPlainRead = {
    "architectures",
    "dtype",
    "head_dim",
    "hidden_act",
    "hidden_size",
    "initializer_range",
    "intermediate_size",
    "layer_types",
    "max_position_embeddings",
    "model_type",
    "num_attention_heads",
    "num_hidden_layers",
    "num_key_value_heads",
    "original_max_position_embeddings",
    "rms_norm_eps",
    "rope_parameters",
    "rope_scaling",
    "rope_theta",
    "sliding_window",
    "tie_word_embeddings",
    "torch_dtype",
    "use_sliding_window",
    "vocab_size",
};

constexpr std::array kPlainFixed = {
    FixedKey{"attention_bias", "false", "biases in attention"},
    FixedKey{"attention_dropout", "0.0", "dropout"},
    FixedKey{"hidden_dropout", "0.0", "dropout"},
    FixedKey{"resid_pdrop", "0.0", "dropout"},
    FixedKey{"embd_pdrop", "0.0", "dropout"},
    FixedKey{"mlp_bias", "false", "biases in the feed-forward part"},
    FixedKey{"partial_rotary_factor", "1.0", "rotary embedding of a part of the head"},
    FixedKey{"pretraining_tp", "1", "products sliced as in pre-training"},
    FixedKey{"quantization_config", "null", "quantised weights"},
    FixedKey{"per_layer_config", "null", "layers of different shapes"},
    FixedKey{"auto_map", "null", "model code outside transformers"},
    FixedKey{"is_encoder_decoder", "false", "encoder-decoder models"},
    FixedKey{"is_decoder", "null", "decoder of an encoder-decoder model"},
    FixedKey{"add_cross_attention", "false", "cross attention"},
    FixedKey{"pruned_heads", "{}", "pruned heads"},
    FixedKey{"rope_interleaved", "false", "interleaved rotary embedding"},
    FixedKey{"rope_local_base_freq", "null", "a second rotary base"},
    FixedKey{"logit_scale", "1.0", "scaled logits"},
    FixedKey{"logits_scaling", "1.0", "scaled logits"},
    FixedKey{"embedding_multiplier", "1.0", "scaled embeddings"},
    FixedKey{"residual_multiplier", "1.0", "scaled residuals"},
    FixedKey{"attention_multiplier", "null", "another scale of attention"},
    FixedKey{"attn_logit_softcapping", "null", "soft-capped attention logits"},
    FixedKey{"final_logit_softcapping", "null", "soft-capped logits"},
    FixedKey{"no_rope_layers", "null", "layers without rotary embedding"},
    FixedKey{"num_nextn_predict_layers", "0", "layers that predict further tokens"},
    FixedKey{"num_experts", "0", "experts"},
    FixedKey{"num_local_experts", "0", "experts"},
};

// No influence on training: tokens with a role in generation, generation settings that
// transformers 4 wrote into the same file, labels of classifiers, bookkeeping.
constexpr std::array kIrrelevant = {
    "_attn_implementation",
    "_attn_implementation_autoset",
    "_commit_hash",
    "_name_or_path",
    "attn_implementation",
    "bad_words_ids",
    "begin_suppress_tokens",
    "bos_token_id",
    "chunk_size_feed_forward",
    "cross_attention_hidden_size",
    "decoder_start_token_id",
    "diversity_penalty",
    "do_sample",
    "early_stopping",
    "encoder_no_repeat_ngram_size",
    "eos_token_id",
    "exponential_decay_length_penalty",
    "finetuning_task",
    "forced_bos_token_id",
    "forced_eos_token_id",
    "id2label",
    "is_llama_config",
    "label2id",
    "length_penalty",
    "max_length",
    "max_window_layers",
    "min_length",
    "name_or_path",
    "no_repeat_ngram_size",
    "num_beam_groups",
    "num_beams",
    "num_labels",
    "num_return_sequences",
    "output_attentions",
    "output_hidden_states",
    "output_scores",
    "pad_token_id",
    "prefix",
    "problem_type",
    "remove_invalid_values",
    "repetition_penalty",
    "return_dict",
    "return_dict_in_generate",
    "sep_token_id",
    "suppress_tokens",
    "task_specific_params",
    "temperature",
    "tf_legacy_loss",
    "tie_encoder_decoder",
    "tokenizer_class",
    "top_k",
    "top_p",
    "torchscript",
    "transformers.js_config",
    "transformers_version",
    "typical_p",
    "unsloth_fixed",
    "unsloth_version",
    "use_bfloat16",
    "use_cache",
};

template <typename List>
bool contains(const List& list, std::string_view key) {
  return std::find(list.begin(), list.end(), key) != list.end();
}

// Equal, where 0 and 0.0 are.
bool is_fixed_value(const Json& value, const char* fixed) {
  return value.is_null() || value == Json::parse(fixed);
}

}  // namespace

const KeyRules kPlainKeys = {kPlainRead, kPlainFixed, {}};

void check_hf_keys(const Json& config, const KeyRules& rules, const std::string& origin) {
  for (const auto& [key, value] : config.items()) {
    if (contains(rules.read, key) || contains(rules.irrelevant, key) ||
        contains(kIrrelevant, key)) {
      continue;
    }
    const auto fixed =
        std::find_if(rules.fixed.begin(), rules.fixed.end(),
                     [&, &name = key](const FixedKey& row) { return name == row.key; });
    if (fixed == rules.fixed.end()) {
      throw UserError(text(origin, ": unknown key ", key, " = ", value.dump(),
                           "; it may change what the model computes. If it does not, remove it "
                           "from the file"));
    }
    if (!is_fixed_value(value, fixed->value)) {
      throw UserError(text(origin, ": ", key, " = ", value.dump(), ": not implemented: ",
                           fixed->feature, "; set it to ", fixed->value, " or leave it out"));
    }
  }
}

}  // namespace longspan
