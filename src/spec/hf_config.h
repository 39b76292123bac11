// A Hugging Face config.json as a ModelSpec, and back.
//
//   const ModelSpec spec = load_hf_config("models/tiny");       // the folder with config.json
//   write_text_atomic(out / "config.json", hf_config_text(spec, "float32"));
//
// Both spellings are read: transformers 4 (rope_theta, rope_scaling, torch_dtype) and 5
// (rope_parameters, dtype). Nothing is ignored in silence: a key that changes the mathematics and
// is not implemented is refused by name unless its value says "off"; a key that is known to be
// irrelevant for training passes; any other key is refused, with a word on what to do. What a file
// leaves out gets the value that transformers gives it. Pure functions except for reading the file;
// any thread.
#pragma once

#include <filesystem>
#include <string>
#include <string_view>

#include "spec/model_spec.h"

namespace longspan {

// `path` is config.json or the folder that holds it.
ModelSpec load_hf_config(const std::filesystem::path& path);

// The same from text; `origin` names it in errors.
ModelSpec parse_hf_config(std::string_view source, const std::string& origin);

// config.json of a model with weights of that dtype ("float32", "bfloat16", ...): the original with
// every key, where there is one; else a complete one that transformers 4 and 5 load.
std::string hf_config_text(const ModelSpec& spec, std::string_view weight_dtype);

}  // namespace longspan
