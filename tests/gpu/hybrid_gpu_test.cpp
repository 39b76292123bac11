// Whole training steps of hybrid models on a GPU: the loss and every gradient of any layout equal
// those of one rank on CPU in float64, bits repeat, and in bfloat16 errors stay within what
// rounding explains.
#include <iostream>

#include "case_errors.h"
#include "gpu_test.h"
#include "host_waits.h"
#include "train/kernel_audit.h"

namespace longspan {
namespace {

class GpuHybridTraining : public GpuTest {
 protected:
  void SetUp() override {
    GpuTest::SetUp();
    set_deterministic(true);
  }
};

Case random_case(uint64_t seed, int ranks) {
  using Mode = StoredMode;
  constexpr std::pair<Mode, Mode> kModes[] = {
      {Mode::kKeep, Mode::kKeep},
      {Mode::kLayerInputsAttention, Mode::kKeep},
      {Mode::kLayerInputs, Mode::kKeep},
      {Mode::kContextOnly, Mode::kLayerInputsAttention},
      {Mode::kContextOnly, Mode::kLayerInputs},
  };
  constexpr int64_t kPairs[] = {1 << 20, 64, 16};
  RandomStream random(seed, "GPU hybrid case");
  Case c{.family = random.below(3) != 0 ? ModelFamily::kGlm5Next : ModelFamily::kKimiLinear,
         .ranks = ranks,
         .chunks = static_cast<int>(random.between(1, 3)),
         .micro_batches = static_cast<int>(random.between(1, 2)),
         .expert_pairs = kPairs[random.below(3)],
         .skew = static_cast<Skew>(random.below(4)),
         .seed = seed};
  c.band = static_cast<int>(random.between(1, c.chunks));
  std::tie(c.stored_mode, c.inner_mode) = kModes[random.below(5)];
  if (ranks > 1) {
    constexpr int kGroups[] = {1, 2, 4};
    c.dedicated = static_cast<int>(random.below(2));
    c.shard_group = kGroups[random.below(3)];
    c.expert_group = kGroups[random.below(3)];
  }
  return c;
}

// Of the gradients that `errors` names, the three worst.
std::string worst_of(std::vector<std::pair<double, std::string>> errors) {
  std::sort(errors.rbegin(), errors.rend());
  std::string line;
  for (size_t i = 0; i < std::min<size_t>(3, errors.size()); ++i) {
    line += text(i > 0 ? ", " : "", errors[i].second, " ", errors[i].first);
  }
  return line;
}

void expect_equals_cpu(at::ScalarType type, double tolerance, uint64_t cases) {
  for (const int ranks : {1, 4}) {
    for (uint64_t seed = 0; seed < cases; ++seed) {
      const Case c = random_case(seed, ranks);
      SCOPED_TRACE(describe(c));
      const Outcome expected = run_case(whole(c));
      const Outcome found = run_case(
          c, {.type = type,
              .device = kGpu,
              .given = type == at::kDouble || c.micro_batches > 1 ? nullptr : &expected.choices});
      EXPECT_NEAR(found.loss, expected.loss, tolerance * std::abs(expected.loss));
      std::vector<std::pair<double, std::string>> errors;
      for (const auto& [name, gradient] : expected.gradients) {
        errors.emplace_back(gradient_error(found, expected, name), name);
        EXPECT_LE(errors.back().first, tolerance) << name;
      }
      std::cout << describe(c) << ", " << c10::toString(type) << ": loss "
                << std::abs(found.loss / expected.loss - 1) << "; " << worst_of(errors) << "\n";
      if (testing::Test::HasFailure()) return;
    }
  }
}

TEST_F(GpuHybridTraining, Float64EqualsCpu) {
  expect_equals_cpu(at::kDouble, 1e-10, 12);
}

// Sums of a few thousand float32 terms through three layers with large random weights.
TEST_F(GpuHybridTraining, Float32EqualsCpu) {
  expect_equals_cpu(at::kFloat, 1e-2, 4);
}

// As training_gpu_test.cpp derives it for plain decoders: in float64 on CPU, rounding every weight
// once moves a gradient by some amount; activations and their gradients are rounded about forty
// times as often on their way. All runs make the choices of the first.
TEST_F(GpuHybridTraining, Bfloat16EqualsFloat64WithinItsRounding) {
  constexpr double kFactor = 6;
  for (const int ranks : {1, 4}) {
    for (uint64_t seed = 0; seed < 6; ++seed) {
      Case c = random_case(seed, ranks);
      c.micro_batches = 1;
      SCOPED_TRACE(describe(c));
      const Outcome expected = run_case(whole(c), {.rounded_weights = true});
      const Outcome exact = run_case(whole(c), {.given = &expected.choices});
      const Outcome found =
          run_case(c, {.type = at::kBFloat16, .device = kGpu, .given = &expected.choices});
      EXPECT_NEAR(found.loss, expected.loss, 0.02 * std::abs(expected.loss));
      double mean = 0;
      for (const auto& [name, gradient] : expected.gradients) {
        mean += gradient_error(exact, expected, name);
      }
      mean /= static_cast<double>(expected.gradients.size());
      std::vector<std::pair<double, std::string>> ratios;
      for (const auto& [name, gradient] : expected.gradients) {
        const double moved = std::max(mean, gradient_error(exact, expected, name));
        ratios.emplace_back(gradient_error(found, expected, name) / moved, name);
        EXPECT_LE(ratios.back().first, kFactor) << name << ", moved by " << moved;
      }
      std::cout << describe(c) << ", BFloat16: loss " << std::abs(found.loss / expected.loss - 1)
                << "; error over what rounding the weights does (mean " << mean
                << "): " << worst_of(ratios) << "\n";
    }
  }
}

TEST_F(GpuHybridTraining, SameBitsOnRepeat) {
  for (const int ranks : {1, 4}) {
    for (uint64_t seed = 0; seed < 4; ++seed) {
      const Case c = random_case(seed, ranks);
      const Outcome first = run_case(c, {.type = at::kBFloat16, .device = kGpu});
      const Outcome second = run_case(c, {.type = at::kBFloat16, .device = kGpu});
      EXPECT_EQ(first.loss, second.loss) << describe(c);
      for (const auto& [name, gradient] : first.gradients) {
        EXPECT_TRUE(gradient.equal(second.gradients.at(name))) << name << ", " << describe(c);
      }
    }
  }
}

// The waits that docs/gpu.md declares and no others: on one rank the ids of each piece in each
// layer with experts, once for all passes, and a loss for each piece. Choices are not kept here,
// because that reads selected pools back.
TEST_F(GpuHybridTraining, TheHostWaitsForExpertIdsAndLossesOnly) {
  for (uint64_t seed = 0; seed < 8; ++seed) {
    Case c = random_case(seed, /*ranks=*/1);
    c.micro_batches = 2;
    const ModelSpec spec = tiny_spec(c);
    const Outcome found =
        run_case(c, {.type = at::kBFloat16, .device = kGpu, .count_waits = host_waits});
    int64_t pieces = 0;
    for (const PlannedMicroBatch& batch : make_batches(c, spec)) {
      for (int chunk = 0; chunk < batch.layout.num_chunks(); ++chunk) {
        pieces += batch.layout.piece(chunk, 0).empty() ? 0 : 1;
      }
    }
    EXPECT_EQ(found.waits, pieces * (spec.count_expert_layers() + 1)) << describe(c);
    std::cout << "waits, " << describe(c) << ": " << found.waits << " with " << pieces
              << " pieces, " << spec.count_expert_layers() << " layers with experts\n";
  }
}

std::vector<std::string> slow_operations(const std::string& preset, at::ScalarType type) {
  std::vector<std::string> slow;
  for (const KernelUse& use :
       kernel_audit(preset_spec(preset), at::TensorOptions(type).device(kGpu))) {
    if (!use.fast) slow.push_back(use.operation);
  }
  return slow;
}

TEST_F(GpuHybridTraining, AuditCallsSlowWhatRunsNoFastKernel) {
  using Names = std::vector<std::string>;
  EXPECT_EQ(slow_operations("glm53_flash", at::kBFloat16), Names{});
  EXPECT_EQ(slow_operations("glm53_flash_mini", at::kBFloat16), Names{});
  EXPECT_EQ(slow_operations("glm53_flash_tiny", at::kBFloat16),
            (Names{"index scoring", "sparse attention"}));
  EXPECT_EQ(slow_operations("glm53_flash_mini", at::kFloat),
            (Names{"linear attention", "index scoring", "sparse attention"}));
  const auto uses =
      kernel_audit(preset_spec("glm53_flash_tiny"), at::TensorOptions(at::kBFloat16).device(kGpu));
  EXPECT_THROW(require_fast(uses, {"index scoring"}), UserError);
  EXPECT_NO_THROW(require_fast(uses, {"index scoring", "sparse attention"}));
  ModelSpec spec = preset_spec("glm53_flash_mini");
  spec.linear_attention.head_dim = 256;
  EXPECT_THROW(kernel_audit(spec, at::TensorOptions(at::kBFloat16).device(kGpu)), UserError);
  spec = preset_spec("glm53_flash_mini");
  spec.index.topk = 8192;
  EXPECT_THROW(kernel_audit(spec, at::TensorOptions(at::kBFloat16).device(kGpu)), UserError);
}

}  // namespace
}  // namespace longspan
