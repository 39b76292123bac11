#include "spec/part_work.h"

#include <gtest/gtest.h>

#include "base/error.h"
#include "base/random.h"
#include "spec/kept_bytes.h"
#include "spec/presets.h"

namespace longspan {
namespace {

const PartWork& part_of(const std::vector<PartWork>& parts, PartKind kind) {
  for (const PartWork& part : parts) {
    if (part.kind == kind) return part;
  }
  throw InternalError("the model has no such part");
}

// All but the mixing of streams, which model FLOPs leave out.
double summed_flops(const std::vector<PartWork>& parts) {
  double sum = 0;
  for (const PartWork& part : parts) {
    if (part.kind != PartKind::kStreams)
      sum += static_cast<double>(part.layers) * part.forward.flops;
  }
  return sum;
}

TEST(PartWork, AddsUpToTheModelFlops) {
  RandomStream random(3, "part work");
  for (const std::string& name : preset_names()) {
    const ModelSpec spec = preset_spec(name);
    ModelWork work;
    for (int i = 0; i < 5; ++i) {
      work += document_work(spec, 1 + static_cast<int64_t>(random.below(100000)));
    }
    const double expected = forward_flops(spec, work) / static_cast<double>(work.tokens);
    EXPECT_NEAR(summed_flops(part_work(spec, work, 2)) / expected, 1, 1e-12) << name;
  }
}

// The table of published and derived figures of GLM-5.3-Flash, in GFLOP for a token of all layers.
TEST(PartWork, FiguresOfTheReleasedModel) {
  const ModelSpec spec = preset_spec("glm53_flash");
  const ModelWork work = document_work(spec, 1 << 20);
  const auto parts = part_work(spec, work, 2);
  const auto giga = [&](PartKind kind) {
    const PartWork& part = part_of(parts, kind);
    return static_cast<double>(part.layers) * part.forward.flops * 1e-9;
  };
  EXPECT_NEAR(giga(PartKind::kProducts) + giga(PartKind::kRouter) + giga(PartKind::kExperts), 33.48,
              0.01);
  EXPECT_NEAR(giga(PartKind::kSparseAttention), 2.96, 0.01);
  EXPECT_NEAR(giga(PartKind::kLinearAttention), 0.39, 0.01);
  EXPECT_NEAR(giga(PartKind::kIndexScoring), 11.81, 0.02);
  // Streams: 32 KiB are read or written three times a site, and a row of 8 KiB twice.
  EXPECT_EQ(part_of(parts, PartKind::kStreams).forward.bytes, 2 * (3 * 32768 + 2 * 8192));
  EXPECT_EQ(part_of(parts, PartKind::kIndexScoring).backward.flops, 0);
  // Of a query: 32 heads of 128 and their weights; a share of a pool key; 512 scores and ids.
  EXPECT_EQ(part_of(parts, PartKind::kIndexScoring).forward.bytes,
            2 * 32 * 129 + 128 * 2 / 4 + 512 * 8);
}

TEST(PartWork, LongerDocumentsCostScoringAndNothingElse) {
  const ModelSpec spec = preset_spec("glm53_flash");
  const auto parts = [&](int64_t tokens) {
    return part_work(spec, document_work(spec, tokens), 2);
  };
  const auto near = parts(1 << 18);
  const auto far = parts(1 << 20);
  for (size_t i = 0; i < near.size(); ++i) {
    const double ratio = far[i].forward.flops / near[i].forward.flops;
    const bool scoring = near[i].kind == PartKind::kIndexScoring;
    EXPECT_NEAR(ratio, scoring ? 4 : 1, 0.02) << part_name(near[i].kind);
  }
}

TEST(KeptBytes, FiguresOfTheReleasedModel) {
  const KeptBytes kept = kept_bytes(preset_spec("glm53_flash"), 2, false);
  // 4 streams of 4,096 in front of 45 layers, and behind the last.
  EXPECT_EQ(kept.layer_inputs, 46 * 4 * 4096 * 2);
  // 64 heads of 128 of 34 layers; 64 heads on latents of 512 with a float32 sum of 11, and their
  // context.
  EXPECT_EQ(kept.mix_outputs, 34 * 64 * 128 * 2 + 11 * (64 * 512 * 2 + 64 * 4) + kept.context);
  EXPECT_EQ(kept.choices, 11 * 512 * 4 + 42 * 8 * 4);
  // Latents of 512, and 128 of a key for four tokens.
  EXPECT_EQ(kept.context, 11 * (512 * 2 + 128 * 2 / 4));
  EXPECT_EQ(kept.chunk_border, 34 * (64 * 128 * 128 + 3 * 64 * 128 * 3) * 4);
  EXPECT_EQ(kept.of_mode("layer_inputs_attention"),
            kept.layer_inputs + kept.mix_outputs + kept.choices);
  EXPECT_EQ(kept.of_mode("layer_inputs"), kept.layer_inputs + kept.choices);
  EXPECT_EQ(kept.of_mode("context_only"), kept.context + kept.choices);
  // On a GPU the host reads expert ids back and keeps them, too.
  EXPECT_EQ(kept_bytes(preset_spec("glm53_flash"), 2, true).choices, 11 * 512 * 4 + 2 * 42 * 8 * 4);
}

TEST(KeptBytes, OfAPlainDecoder) {
  const ModelSpec spec = preset_spec("llama_8b");
  const KeptBytes kept = kept_bytes(spec, 2, true);
  EXPECT_EQ(kept.layer_inputs, (32 + 1) * 4096 * 2);
  EXPECT_EQ(kept.mix_outputs, 32 * (4096 * 2 + 32 * 4));
  EXPECT_EQ(kept.context, 32 * 2 * 1024 * 2);  // 128 KiB
  EXPECT_EQ(kept.choices, 0);
  EXPECT_EQ(kept.chunk_border, 0);
}

}  // namespace
}  // namespace longspan
