// Any bytes as a Hugging Face config.json: a UserError, or a model whose sizes can be counted and
// whose exported configuration means the same.
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <string_view>

#include "base/check.h"
#include "spec/flops.h"
#include "spec/hf_config.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace longspan;
  const std::string_view content(reinterpret_cast<const char*>(data), size);
  try {
    ModelSpec spec = parse_hf_config(content, "input");
    LONGSPAN_CHECK(matrix_weights(spec) > 0, matrix_weights(spec));
    if (spec.head_dim <= 4096) {
      const RopeFrequencies rope = rope_frequencies(spec.rope, spec.head_dim);
      for (const float value : rope.inverse) LONGSPAN_CHECK(std::isfinite(value), value);
    }
    const ModelSpec exported = parse_hf_config(hf_config_text(spec, "float64"), "exported");
    LONGSPAN_CHECK(exported.rope == spec.rope, "exported with the original");
    spec.hf_config.clear();
    const ModelSpec written = parse_hf_config(hf_config_text(spec, "float64"), "written");
    LONGSPAN_CHECK(written.rope == spec.rope, "written from the values");
  } catch (const UserError&) {
  }
  return 0;
}
