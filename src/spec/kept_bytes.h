// What a token leaves in memory between its forward and its backward, by stored mode, in closed
// form: what layer inputs, outputs of mixes, choices and context weigh.
//
//   const KeptBytes kept = kept_bytes(spec, /*value_bytes=*/2, /*on_gpu=*/true);
//   kept.of_mode("layer_inputs") * tokens                      // of a rank
//   kept.of_mode("context_only") * tokens + kept.chunk_border * borders
//
// Context-only keeps the context of all chunks but the last, and the last chunk's band in its inner
// mode beside it. Borders of chunks hold the states of linear attention, which do not grow with
// tokens. `keep` holds all activations of the segments' graphs and has no closed form here. Every
// figure is of one rank's own tokens and of all layers. Pure; any thread.
#pragma once

#include <cstdint>
#include <string_view>

#include "spec/model_spec.h"

namespace longspan {

struct KeptBytes {
  int64_t layer_inputs = 0;  // in front of each layer, and behind the last
  int64_t mix_outputs = 0;   // core attention: O and LSE; sparse attention: its context, too
  int64_t choices = 0;       // selected pools, chosen experts
  int64_t context = 0;       // keys and values, or latents and a share of a pool key
  int64_t chunk_border = 0;  // of a border of chunks, not of a token: states and taps

  // layer_inputs_attention, layer_inputs or context_only.
  int64_t of_mode(std::string_view mode) const;
};

// `on_gpu`: expert ids are kept there and on the host.
KeptBytes kept_bytes(const ModelSpec& spec, int64_t value_bytes, bool on_gpu);

}  // namespace longspan
