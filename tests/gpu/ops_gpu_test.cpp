// Every GPU kernel against its twin on CPU in float64, over random ragged shapes and all types, and
// again for the same bits.
#include <numeric>

#include "attention/gpu_attention.h"
#include "attention/row_arithmetic.h"
#include "device/device_types.h"
#include "gpu_test.h"
#include "kernels/cuda/attention_rows.h"
#include "kernels/cuda/row_pieces.h"
#include "layers/embedding.h"
#include "layers/head_loss.h"
#include "layers/row_ops.h"
#include "layers/test_parameters.h"
#include "train/device_update.h"

namespace longspan {
namespace {

class GpuOps : public GpuTest {};

// Values of the type, here in float64.
at::Tensor rounded(RandomStream& random, std::vector<int64_t> shape, at::ScalarType type) {
  return random_tensor(random, std::move(shape), type).to(at::kDouble);
}

at::Tensor on_gpu(const at::Tensor& values, at::ScalarType type) {
  return values.to(at::TensorOptions(type).device(kGpu));
}

// Poisoned: every element must be written.
at::Tensor poisoned_like(const at::Tensor& like) {
  return at::full_like(like, std::numeric_limits<double>::quiet_NaN());
}

int64_t random_width(RandomStream& random) {
  const int64_t kind = random.between(0, 3);
  if (kind == 0) return random.between(1, 70);
  if (kind == 1) return 8 * random.between(1, 40);
  return kind == 2 ? 128 * random.between(1, 64) : random.between(1, 2000);
}

TEST_F(GpuOps, Norm) {
  for (const at::ScalarType type : kGpuTypes) {
    const at::ScalarType sums = accumulate_type(type);
    for (uint64_t seed = 0; seed < 24; ++seed) {
      RandomStream random(seed, "norm");
      int64_t width = random_width(random);
      if (type == at::kDouble) width = std::min<int64_t>(width, 4096);  // what its kernel holds
      const int64_t rows = random.between(0, 300);
      SCOPED_TRACE(text("seed ", seed, ", ", rows, " x ", width, " ", c10::toString(type)));
      const at::Tensor x = rounded(random, {rows, width}, type);
      const at::Tensor weight = rounded(random, {width}, type);
      const at::Tensor dy = rounded(random, {rows, width}, type);
      const NormOutput expected = norm_forward(x, weight, 1e-5);
      const NormOutput found = norm_forward(on_gpu(x, type), on_gpu(weight, type), 1e-5);
      EXPECT_LE(error_of(found.y, expected.y), rounding_of(type));
      EXPECT_LE(error_of(found.inverse_rms, expected.inverse_rms), rounding_of(sums));

      at::Tensor again;
      const at::Tensor dweight = at::ones({width}, at::kDouble);
      const at::Tensor dx = at::empty_like(x);
      norm_backward(x, weight, expected.inverse_rms, dy, dweight, dx, &again);
      const auto backward = [&] {
        at::Tensor y;
        at::Tensor gradient = at::ones({width}, at::TensorOptions(sums).device(kGpu));
        at::Tensor result = poisoned_like(on_gpu(x, type));
        norm_backward(on_gpu(x, type), on_gpu(weight, type), found.inverse_rms, on_gpu(dy, type),
                      gradient, result, &y);
        return std::vector<at::Tensor>{result, gradient, y};
      };
      const auto first = backward();
      EXPECT_LE(error_of(first[0], dx), 2 * rounding_of(type));
      EXPECT_LE(error_of(first[1], dweight), 10 * rounding_of(sums));
      EXPECT_TRUE(first[2].equal(found.y));
      const auto second = backward();
      for (size_t i = 0; i < first.size(); ++i) EXPECT_TRUE(first[i].equal(second[i]));
    }
  }
}

TEST_F(GpuOps, Rope) {
  for (const at::ScalarType type : kGpuTypes) {
    for (uint64_t seed = 0; seed < 12; ++seed) {
      RandomStream random(seed, "rope");
      const int64_t half = random.below(2) == 0 ? 8 * random.between(1, 16) : random.between(1, 40);
      const int64_t heads = random.between(1, 9);
      std::vector<int64_t> positions(static_cast<size_t>(random.between(0, 200)));
      for (int64_t& position : positions) position = random.between(0, 1 << 20);
      std::vector<float> frequencies;
      for (int64_t i = 0; i < half; ++i) {
        frequencies.push_back(static_cast<float>(
            std::pow(500000.0, -static_cast<double>(i) / static_cast<double>(half))));
      }
      SCOPED_TRACE(text("seed ", seed, ", heads ", heads, ", half ", half));
      const auto table = make_rope_table(frequencies, 1.25, positions, at::kDouble);
      const auto gpu_table = make_rope_table(frequencies, 1.25, positions,
                                             at::TensorOptions(accumulate_type(type)).device(kGpu));
      EXPECT_LE(error_of(gpu_table->cosines, table->cosines), 1e-6);
      EXPECT_LE(error_of(gpu_table->sines, table->sines), 1e-6);
      const at::Tensor q = rounded(random, {std::ssize(positions), heads, 2 * half}, type);
      for (const int direction : {1, -1}) {
        const at::Tensor found = rotate(on_gpu(q, type), *gpu_table, direction);
        EXPECT_LE(error_of(found, rotate(q, *table, direction)), rounding_of(type) + 1e-6);
      }
    }
  }
}

TEST_F(GpuOps, Swiglu) {
  for (const at::ScalarType type : kGpuTypes) {
    for (uint64_t seed = 0; seed < 12; ++seed) {
      RandomStream random(seed, "swiglu");
      const std::vector<int64_t> shape = {random.between(0, 60), random_width(random)};
      const at::Tensor gate = rounded(random, shape, type) * 4;
      const at::Tensor up = rounded(random, shape, type);
      const at::Tensor dy = rounded(random, shape, type);
      SCOPED_TRACE(text("seed ", seed, " ", c10::toString(type)));
      EXPECT_LE(error_of(swiglu(on_gpu(gate, type), on_gpu(up, type)), swiglu(gate, up)),
                rounding_of(type));
      const at::Tensor dup = dy.clone();
      const SwigluGradient expected = swiglu_backward(gate, up, dup);
      const at::Tensor gpu_dup = on_gpu(dy, type).clone();
      const SwigluGradient found = swiglu_backward(on_gpu(gate, type), on_gpu(up, type), gpu_dup);
      EXPECT_LE(error_of(found.y, expected.y), rounding_of(type));
      EXPECT_LE(error_of(found.dgate, expected.dgate), rounding_of(type));
      EXPECT_LE(error_of(gpu_dup, dup), rounding_of(type));
    }
  }
}

// Weights in the type and accumulators in its accumulation type, both of the CPU's values.
TestParameters gpu_parameters(const TestParameters& parameters, at::ScalarType type) {
  TestParameters copy({}, at::kDouble, 0);
  for (const at::Tensor& weight : parameters.weights) {
    copy.weights.push_back(on_gpu(weight, type));
    copy.gradients.push_back(
        at::zeros(weight.sizes(), at::TensorOptions(accumulate_type(type)).device(kGpu)));
  }
  return copy;
}

TestParameters rounded_parameters(const std::vector<std::vector<int64_t>>& shapes,
                                  at::ScalarType type, uint64_t seed) {
  TestParameters parameters(shapes, at::kDouble, seed);
  for (at::Tensor& weight : parameters.weights) weight = weight.to(type).to(at::kDouble);
  return parameters;
}

TEST_F(GpuOps, Embedding) {
  for (const at::ScalarType type : kGpuTypes) {
    for (uint64_t seed = 0; seed < 12; ++seed) {
      RandomStream random(seed, "embedding");
      const int64_t vocabulary = random.between(1, 300);
      const int64_t width = random_width(random);
      std::vector<int32_t> tokens(static_cast<size_t>(random.between(0, 1500)));
      for (int32_t& token : tokens) {
        token = static_cast<int32_t>(random.below(2) == 0 ? 0 : random.between(0, vocabulary - 1));
      }
      SCOPED_TRACE(text("seed ", seed, ", ", tokens.size(), " of ", vocabulary, " x ", width));
      TestParameters cpu = rounded_parameters({{vocabulary, width}}, type, seed);
      TestParameters gpu = gpu_parameters(cpu, type);
      const at::Tensor x = embed(gpu.access(), 0, tokens);
      EXPECT_TRUE(x.to(at::kDouble).cpu().equal(embed(cpu.access(), 0, tokens)));
      const at::Tensor dx = rounded(random, {std::ssize(tokens), width}, type);
      embed_backward(cpu.access(), 0, tokens, dx);
      embed_backward(gpu.access(), 0, tokens, on_gpu(dx, type));
      EXPECT_LE(error_of(gpu.gradients[0], cpu.gradients[0]),
                10 * rounding_of(accumulate_type(type)));
      const at::Tensor first = gpu.gradients[0].clone();
      gpu.gradients[0].zero_();
      embed_backward(gpu.access(), 0, tokens, on_gpu(dx, type));
      EXPECT_TRUE(gpu.gradients[0].equal(first));
    }
  }
}

// Loss, dX and both weight gradients: norm, product with an accumulator, cross-entropy in chunks.
TEST_F(GpuOps, HeadLoss) {
  for (const at::ScalarType type : kGpuTypes) {
    for (uint64_t seed = 0; seed < 8; ++seed) {
      RandomStream random(seed, "head");
      const int64_t width = 8 * random.between(1, 12);
      const int64_t vocabulary =
          random.below(2) == 0 ? 8 * random.between(1, 90) : random.between(2, 700);
      const int64_t tokens = random.between(1, 200);
      SCOPED_TRACE(text("seed ", seed, ", ", tokens, " tokens, ", width, " x ", vocabulary, " ",
                        c10::toString(type)));
      const at::Tensor x = rounded(random, {tokens, width}, type);
      std::vector<int32_t> targets;
      std::vector<float> weights;
      for (int64_t t = 0; t < tokens; ++t) {
        const bool none = random.below(4) == 0;
        targets.push_back(none ? -1 : static_cast<int32_t>(random.between(0, vocabulary - 1)));
        weights.push_back(none ? 0.0F : static_cast<float>(random.uniform()));
      }
      const HeadParameters head{.norm = 0, .weight = 1, .epsilon = 1e-5};
      TestParameters cpu = rounded_parameters({{width}, {vocabulary, width}}, type, seed);
      cpu.weights[1] = (cpu.weights[1] * 0.25).to(type).to(at::kDouble);
      TestParameters gpu = gpu_parameters(cpu, type);
      const HeadLossOptions options{.gpu_logits_bytes_max = vocabulary * 8 * 50};
      const auto run = [&](TestParameters& parameters, const at::Tensor& input) {
        for (at::Tensor& gradient : parameters.gradients) gradient.zero_();
        return head_loss(parameters.access(), head, input, {targets, weights}, 0.5, options);
      };
      const HeadLossResult expected = run(cpu, x);
      const HeadLossResult found = run(gpu, on_gpu(x, type));
      // bfloat16: each logit is rounded, by 2^-9 of up to about 4 in the exponent.
      const double bound = type == at::kBFloat16 ? 0.02 : 10 * rounding_of(type);
      EXPECT_LE(error_of(found.weighted_loss_sum, expected.weighted_loss_sum), bound);
      EXPECT_LE(error_of(found.dx_TC, expected.dx_TC), bound);
      for (size_t i = 0; i < 2; ++i) {
        EXPECT_LE(error_of(gpu.gradients[i], cpu.gradients[i]), bound) << "gradient " << i;
        EXPECT_EQ(gpu.gradients[i].scalar_type(), accumulate_type(type));
      }
      const at::Tensor gradient = gpu.gradients[1].clone();
      const HeadLossResult again = run(gpu, on_gpu(x, type));
      EXPECT_TRUE(again.dx_TC.equal(found.dx_TC));
      EXPECT_TRUE(again.weighted_loss_sum.equal(found.weighted_loss_sum));
      EXPECT_TRUE(gpu.gradients[1].equal(gradient));
      const auto losses = head_token_losses(cpu.access(), head, x, targets, options);
      const auto gpu_losses =
          head_token_losses(gpu.access(), head, on_gpu(x, type), targets, options);
      EXPECT_LE(error_of(at::tensor(gpu_losses), at::tensor(losses)), bound);
    }
  }
}

TEST_F(GpuOps, AdamW) {
  for (const at::ScalarType type : {at::kFloat, at::kDouble}) {
    for (uint64_t seed = 0; seed < 8; ++seed) {
      RandomStream random(seed, "adamw");
      const int64_t count = random.between(1, 100000);
      const Range part{random.between(0, count), count};
      std::vector<at::Tensor> cpu;
      for (int i = 0; i < 4; ++i) cpu.push_back(rounded(random, {count}, type));
      cpu[3] = cpu[3].abs();
      std::vector<at::Tensor> gpu;
      for (const at::Tensor& array : cpu) gpu.push_back(on_gpu(array, type).clone());
      const at::Tensor low = at::zeros({count}, at::TensorOptions(at::kBFloat16).device(kGpu));
      const AdamWStep step{
          .learning_rate = 0.01, .weight_decay = 0.1, .gradient_scale = 0.7, .step = 5};
      const double squares = device_squared_norm({gpu[0], gpu[1]});
      const double expected_squares = squared_norm(cpu[0].const_data_ptr<double>(), {0, count}) +
                                      squared_norm(cpu[1].const_data_ptr<double>(), {0, count});
      EXPECT_NEAR(squares, expected_squares, 1e-12 * expected_squares);
      EXPECT_EQ(squares, device_squared_norm({gpu[0], gpu[1]}));
      adamw_update(step, part, cpu[0].const_data_ptr<double>(), cpu[1].data_ptr<double>(),
                   cpu[2].data_ptr<double>(), cpu[3].data_ptr<double>());
      device_update(step, {gpu[0], gpu[1], gpu[2], gpu[3], low}, part);
      for (size_t i = 1; i < 4; ++i) EXPECT_LE(error_of(gpu[i], cpu[i]), rounding_of(type));
      const at::Tensor changed = gpu[1].narrow(0, part.begin, part.size());
      EXPECT_TRUE(low.narrow(0, part.begin, part.size()).equal(changed.to(at::kBFloat16)));
      EXPECT_EQ(low.narrow(0, 0, part.begin).count_nonzero().item<int64_t>(), 0);
    }
  }
}

TEST_F(GpuOps, MergeAndDelta) {
  for (const at::ScalarType type : kGpuTypes) {
    const at::ScalarType sums = accumulate_type(type);
    for (uint64_t seed = 0; seed < 8; ++seed) {
      RandomStream random(seed, "merge");
      const AttentionShape shape{
          .heads = random.between(1, 6), .key_heads = 1, .head_width = random.between(1, 140)};
      const int64_t rows = random.between(0, 90);
      const std::vector<int64_t> sizes = {rows, shape.heads, shape.head_width};
      const at::Tensor part_o = rounded(random, sizes, type);
      const at::Tensor part_lse = rounded(random, {rows, shape.heads}, sums);
      at::Tensor o = rounded(random, sizes, sums);
      at::Tensor lse = rounded(random, {rows, shape.heads}, sums);
      if (rows > 3) {
        lse[0].fill_(-std::numeric_limits<double>::infinity());
        o[0].zero_();
        part_lse[1].fill_(-std::numeric_limits<double>::infinity());
        for (const at::Tensor& of : {lse, part_lse}) {
          of[2].fill_(-std::numeric_limits<double>::infinity());
        }
      }
      const at::Tensor gpu_o = on_gpu(o, sums).clone();
      const at::Tensor gpu_lse = on_gpu(lse, sums).clone();
      merge_rows(shape, o, lse, part_o, part_lse);
      merge_rows(shape, gpu_o, gpu_lse, on_gpu(part_o, type), on_gpu(part_lse, sums));
      EXPECT_LE(error_of(gpu_o, o), 2 * rounding_of(sums)) << "seed " << seed;
      EXPECT_TRUE(at::isneginf(gpu_lse).cpu().equal(at::isneginf(lse)));
      EXPECT_LE(error_of(gpu_lse.nan_to_num(0, 0, 0), lse.nan_to_num(0, 0, 0)), rounding_of(sums));

      const at::Tensor whole = rounded(random, sizes, type);
      const at::Tensor delta = row_delta(shape, on_gpu(whole, type), on_gpu(part_o, type));
      EXPECT_LE(error_of(delta, row_delta(shape, whole, part_o)), 10 * rounding_of(sums));
    }
  }
}

// Unaligned pieces of every size, more than fit one launch.
TEST_F(GpuOps, PiecesAreCopiedAndAdded) {
  for (uint64_t seed = 0; seed < 6; ++seed) {
    RandomStream random(seed, "pieces");
    const int64_t count = 300000;
    const at::Tensor source = on_gpu(rounded(random, {count}, at::kBFloat16), at::kBFloat16);
    at::Tensor copied = at::zeros_like(source);
    at::Tensor expected_copy = at::zeros_like(source);
    at::Tensor added = at::ones({count}, at::TensorOptions(at::kFloat).device(kGpu));
    at::Tensor expected_sum = added.clone();
    std::vector<std::pair<at::Tensor, at::Tensor>> copies;
    std::vector<cuda::AddPiece<cuda::Bf16>> additions;
    for (int64_t begin = 0; begin < count;) {
      const int64_t size = std::min(
          count - begin, random.below(8) == 0 ? random.between(1, 60000) : random.between(1, 900));
      if (random.below(3) > 0) {
        const int64_t from = random.between(0, count - size);
        copies.emplace_back(source.narrow(0, from, size), copied.narrow(0, begin, size));
        expected_copy.narrow(0, begin, size).copy_(source.narrow(0, from, size));
        additions.push_back(
            {device_data<cuda::Bf16>(source) + from, device_data<float>(added) + begin, size});
        expected_sum.narrow(0, begin, size).add_(source.narrow(0, from, size));
      }
      begin += size;
    }
    gpu_copy(copies);
    cuda::add_pieces<cuda::Bf16>(additions, current_stream());
    EXPECT_TRUE(copied.equal(expected_copy)) << "seed " << seed;
    EXPECT_TRUE(added.equal(expected_sum)) << "seed " << seed;
  }
}

// More pieces than one launch takes: as one merge for each piece leaves them, bit for bit.
TEST_F(GpuOps, ManyMergesAreOneLaunch) {
  using cuda::Bf16;
  for (uint64_t seed = 0; seed < 4; ++seed) {
    RandomStream random(seed, "merges");
    const AttentionShape shape{.heads = random.between(1, 6),
                               .key_heads = 1,
                               .head_width = seed % 2 == 0 ? 128 : random.between(1, 140)};
    const int64_t rows = 3000;
    const std::vector<int64_t> sizes = {rows, shape.heads, shape.head_width};
    const at::Tensor part_o = on_gpu(rounded(random, sizes, at::kBFloat16), at::kBFloat16);
    const at::Tensor part_lse =
        on_gpu(rounded(random, {rows, shape.heads}, at::kFloat), at::kFloat);
    const at::Tensor o = on_gpu(rounded(random, sizes, at::kFloat), at::kFloat);
    const at::Tensor lse = on_gpu(rounded(random, {rows, shape.heads}, at::kFloat), at::kFloat);
    const at::Tensor expected_o = o.clone();
    const at::Tensor expected_lse = lse.clone();
    std::vector<cuda::MergePiece<float, Bf16>> pieces;
    for (int64_t begin = 0; begin < rows;) {
      const int64_t count = std::min(rows - begin, random.between(1, 40));
      const auto part = [&](const at::Tensor& of) { return of.narrow(0, begin, count); };
      if (random.below(4) > 0) {
        gpu_merge_rows(shape, part(expected_o), part(expected_lse), part(part_o), part(part_lse));
        pieces.push_back({count,
                          device_data<float>(part(o)),
                          device_data<float>(part(lse)),
                          device_data<const Bf16>(part(part_o)),
                          {device_data<const float>(part(part_lse)), shape.heads, 1}});
      }
      begin += count;
    }
    cuda::merge_attention_rows<float, Bf16>(shape, pieces, current_stream());
    EXPECT_TRUE(o.equal(expected_o)) << "seed " << seed;
    EXPECT_TRUE(lse.equal(expected_lse)) << "seed " << seed;
  }
}

TEST_F(GpuOps, RowsAreTurnedHeadByHead) {
  for (uint64_t seed = 0; seed < 6; ++seed) {
    RandomStream random(seed, "head rows");
    const int64_t heads = random.between(1, 40);
    const int64_t rows = 20000;
    const at::Tensor source = on_gpu(rounded(random, {rows, heads}, at::kFloat), at::kFloat);
    const at::Tensor turned = at::zeros({heads, rows}, source.options());
    at::Tensor expected = at::zeros_like(turned);
    std::vector<cuda::HeadRowsPiece> pieces;
    for (int64_t begin = 0; begin < rows;) {
      const int64_t count = std::min(rows - begin, random.between(1, random.below(9) ? 90 : 2000));
      const bool filling = random.below(4) == 0;
      pieces.push_back({filling ? nullptr : device_data<float>(source) + begin * heads,
                        device_data<float>(turned) + begin, count, rows});
      at::Tensor to = expected.narrow(1, begin, count);
      if (filling) {
        to.fill_(std::numeric_limits<double>::infinity());
      } else {
        to.copy_(source.narrow(0, begin, count).t());
      }
      begin += count;
    }
    cuda::copy_head_rows(pieces, heads, current_stream());
    EXPECT_TRUE(turned.equal(expected)) << "seed " << seed;
  }
}

}  // namespace
}  // namespace longspan
