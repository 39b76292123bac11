// Rotary position embedding: its parameters as a Hugging Face configuration states them, and the
// inverse frequencies they lead to.
//
//   const RopeFrequencies rope = rope_frequencies(spec.rope, spec.head_dim);
//   angle = position * rope.inverse[i];  cos(angle) * rope.attention_scaling
//
// The frequencies are float32, formed by the same float32 steps in the same order as transformers
// forms them: at position 10^6 one unit in the last place of a frequency turns a head by up to 0.06
// radians, so a model is only equal to its reference if the bits are. Powers are rounded correctly
// here; vectorised libraries may differ from that in the last place of about one value in a hundred
// (tests/golden/README.md). Pure function; any thread.
#pragma once

#include <cstdint>
#include <optional>
#include <string_view>
#include <vector>

namespace longspan {

enum class RopeType { kDefault, kLinear, kLlama3, kYarn };
std::string_view rope_type_name(RopeType type);

// Fields that a type does not use keep their initial values.
struct RopeSpec {
  RopeType type = RopeType::kDefault;
  double theta = 10000;
  double factor = 1;                             // linear, llama3, yarn
  int64_t original_max_position_embeddings = 0;  // llama3, yarn
  double low_freq_factor = 1;                    // llama3
  double high_freq_factor = 4;                   // llama3
  std::optional<double> attention_factor;        // yarn, as the next six
  double beta_fast = 32;
  double beta_slow = 1;
  double mscale = 0;
  double mscale_all_dim = 0;
  bool truncate = true;

  bool operator==(const RopeSpec&) const = default;
};

struct RopeFrequencies {
  std::vector<float> inverse;  // head_dim / 2 values, falling
  double attention_scaling = 1;
};

RopeFrequencies rope_frequencies(const RopeSpec& rope, int64_t head_dim);

}  // namespace longspan
