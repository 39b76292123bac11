// Compiled without fused multiply-add (CMakeLists.txt): each step below rounds to float32, as the
// reference does.
#include "spec/rope.h"

#include <algorithm>
#include <cmath>
#include <numbers>

#include "base/check.h"

namespace longspan {
namespace {

float to_float(double value) {
  return static_cast<float>(value);
}

// theta ^ (2i / head_dim), the exponent and the result rounded to float32.
std::vector<float> wave_scales(double theta, int64_t head_dim) {
  std::vector<float> scales;
  const float width = static_cast<float>(head_dim);
  for (int64_t i = 0; i < head_dim; i += 2) {
    const float exponent = static_cast<float>(i) / width;
    scales.push_back(to_float(std::pow(static_cast<double>(to_float(theta)), exponent)));
  }
  return scales;
}

// Low frequencies are divided by the factor, high ones stay, those between are interpolated.
float llama3_frequency(float frequency, const RopeSpec& rope) {
  const float factor = to_float(rope.factor);
  const auto old_length = static_cast<double>(rope.original_max_position_embeddings);
  const float low_wave = to_float(old_length / rope.low_freq_factor);
  const float high_wave = to_float(old_length / rope.high_freq_factor);
  const float wave = (1.0F / frequency) * to_float(2 * std::numbers::pi);
  if (wave > low_wave) return frequency / factor;
  if (wave < high_wave) return frequency;
  const float turns = (1.0F / wave) * to_float(old_length);
  const float smooth = (turns - to_float(rope.low_freq_factor)) /
                       to_float(rope.high_freq_factor - rope.low_freq_factor);
  const float slowed = (1.0F - smooth) * frequency / factor;
  return slowed + smooth * frequency;
}

// The index at which a frequency makes `rotations` turns over the original length.
double yarn_index(double rotations, int64_t head_dim, const RopeSpec& rope) {
  const auto length = static_cast<double>(rope.original_max_position_embeddings);
  return static_cast<double>(head_dim) * std::log(length / (rotations * 2 * std::numbers::pi)) /
         (2 * std::log(rope.theta));
}

std::vector<float> yarn_frequencies(const std::vector<float>& scales, int64_t head_dim,
                                    const RopeSpec& rope) {
  double low = yarn_index(rope.beta_fast, head_dim, rope);
  double high = yarn_index(rope.beta_slow, head_dim, rope);
  if (rope.truncate) {
    low = std::floor(low);
    high = std::ceil(high);
  }
  low = std::max(low, 0.0);
  high = std::min(high, static_cast<double>(head_dim - 1));
  if (low == high) high += 0.001;  // no division by zero

  std::vector<float> inverse;
  for (size_t i = 0; i < scales.size(); ++i) {
    const float extrapolated = 1.0F / scales[i];
    const float interpolated = 1.0F / (to_float(rope.factor) * scales[i]);
    const float ramp = (static_cast<float>(i) - to_float(low)) / to_float(high - low);
    const float kept = 1.0F - std::clamp(ramp, 0.0F, 1.0F);
    const float slowed = interpolated * (1.0F - kept);
    inverse.push_back(slowed + extrapolated * kept);
  }
  return inverse;
}

double yarn_mscale(double scale, double weight) {
  return scale <= 1 ? 1.0 : 0.1 * weight * std::log(scale) + 1.0;
}

double yarn_attention_scaling(const RopeSpec& rope) {
  if (rope.attention_factor) return *rope.attention_factor;
  if (rope.mscale != 0 && rope.mscale_all_dim != 0) {
    return yarn_mscale(rope.factor, rope.mscale) / yarn_mscale(rope.factor, rope.mscale_all_dim);
  }
  return yarn_mscale(rope.factor, 1);
}

}  // namespace

std::string_view rope_type_name(RopeType type) {
  switch (type) {
    case RopeType::kDefault:
      return "default";
    case RopeType::kLinear:
      return "linear";
    case RopeType::kLlama3:
      return "llama3";
    case RopeType::kYarn:
      return "yarn";
  }
  throw InternalError("unknown rope type");
}

RopeFrequencies rope_frequencies(const RopeSpec& rope, int64_t head_dim) {
  LONGSPAN_CHECK(head_dim > 0 && head_dim % 2 == 0, "head_dim ", head_dim);
  const std::vector<float> scales = wave_scales(rope.theta, head_dim);
  RopeFrequencies result;
  if (rope.type == RopeType::kYarn) {
    result.inverse = yarn_frequencies(scales, head_dim, rope);
    result.attention_scaling = yarn_attention_scaling(rope);
    return result;
  }
  for (const float scale : scales) {
    float frequency = 1.0F / scale;
    if (rope.type == RopeType::kLinear) frequency /= to_float(rope.factor);
    if (rope.type == RopeType::kLlama3) frequency = llama3_frequency(frequency, rope);
    result.inverse.push_back(frequency);
  }
  return result;
}

}  // namespace longspan
