// For tests: sparse attention over random layouts, chunks and ranks, and what plain loops over
// whole documents give for the same inputs.
//
//   const MixCase c = random_case(seed, /*ranks=*/4, /*chunks=*/3);
//   const Line got = run_case(c);                    // ranks as threads, on c.device in c.type
//   const Line expected = reference_line(c, got);    // float64, of the inputs in `got`
//
// Inputs are values of c.type, so that all types see the same. Main thread only.
#pragma once

#include <ATen/Parallel.h>
#include <ATen/ops/full.h>
#include <gtest/gtest.h>

#include <numeric>

#include "attention/test_arrays.h"
#include "comm/run_ranks.h"
#include "device/device.h"
#include "kernels/cpu/reference_sparse_attention.h"
#include "planner/random_plan.h"
#include "sparse_attention/sparse_attention_mix.h"

namespace longspan {

using Doubles = std::vector<double>;

struct MixCase {
  TokenLayout layout;
  IndexShape index;
  SparseAttentionShape attention;
  int band = 1;  // chunks whose whole contexts live together
  bool repeat = false;
  bool random_plans = false;
  LatentTravel travel = LatentTravel::kAuto;
  at::ScalarType type = at::kDouble;
  at::Device device = at::kCPU;
  uint64_t seed = 0;
};

// Values of a whole micro-batch by line position.
struct Line {
  std::vector<Doubles> inputs;  // in the order of the mix
  Doubles d_o;
  Doubles o, lse, d_q, d_c;
  std::vector<std::vector<int32_t>> selected;
};

inline TokenLayout any_borders(RandomStream& random, int ranks, int chunks, bool with_short) {
  std::vector<int64_t> lengths(static_cast<size_t>(random.between(1, 6)));
  for (int64_t& length : lengths) {
    length = random.between(1, with_short && random.below(2) == 0 ? 5 : 140);
  }
  const int64_t tokens = std::accumulate(lengths.begin(), lengths.end(), int64_t{0});
  std::vector<int64_t> borders = {0, tokens};
  while (std::ssize(borders) < int64_t{ranks} * chunks + 1) {
    const int64_t border = random.between(0, tokens);
    borders.push_back(border);
    // Pieces of a token or two, several in a row.
    while (random.below(3) == 0 && std::ssize(borders) < int64_t{ranks} * chunks + 1) {
      borders.push_back(std::min(tokens, borders.back() + random.between(0, 2)));
    }
  }
  std::sort(borders.begin(), borders.end());
  return TokenLayout::from_borders(lengths, chunks, ranks, borders);
}

inline MixCase random_case(uint64_t seed, int ranks, int chunks) {
  RandomStream random(seed, "sparse attention mix test");
  MixCase c{.layout = any_borders(random, ranks, chunks, seed % 2 == 0)};
  c.seed = seed;
  c.index = {.heads = random.between(1, 3),
             .width = random.between(1, 6),
             .pool_tokens = random.below(3) == 0 ? 2 : 4,
             .top_pools = random.between(1, 8),
             .scale = 0.5};
  c.attention = {.heads = random.between(1, 3),
                 .width = random.between(1, 9),
                 .pool_tokens = c.index.pool_tokens,
                 .scale = 0.4};
  c.band = static_cast<int>(random.between(1, chunks));
  c.repeat = random.below(2) == 0;
  c.random_plans = random.below(2) == 0;
  c.travel = static_cast<LatentTravel>(random.below(3));
  return c;
}

inline std::string describe(const MixCase& c) {
  std::string pieces;
  for (int chunk = 0; chunk < c.layout.num_chunks(); ++chunk) {
    for (int rank = 0; rank < c.layout.num_ranks(); ++rank) {
      pieces += text(c.layout.piece(chunk, rank));
    }
  }
  return text("seed ", c.seed, ": ", c.layout.num_ranks(), " ranks, ", c.layout.num_chunks(),
              " chunks in bands of ", c.band, ", ", c.layout.num_documents(),
              " documents, pools of ", c.index.pool_tokens, ", top ", c.index.top_pools,
              c.repeat ? ", repeated" : "", c.random_plans ? ", random plans" : "", ", travel ",
              static_cast<int>(c.travel), ", ", pieces);
}

inline Doubles rounded_to(const Doubles& values, at::ScalarType type) {
  return values_of<double>(tensor_of(values, {std::ssize(values)}).to(type).to(at::kDouble));
}

inline Line random_line(const MixCase& c, const SparseAttentionMix& mix) {
  RandomStream random(c.seed, "sparse attention mix values");
  const int64_t tokens = c.layout.num_tokens();
  const auto values = [&](const std::vector<int64_t>& row) {
    int64_t count = tokens;
    for (const int64_t extent : row) count *= extent;
    return random_rows<double>(random, count);
  };
  Line line;
  for (const auto& row : mix.input_rows()) line.inputs.push_back(values(row));
  line.d_o = values(mix.output_row());
  if (c.seed % 3 == 0) {  // few distinct scores, exact in any order of sums
    for (const size_t idx : {2, 3, 4}) {
      for (double& value : line.inputs[idx]) value = std::clamp(std::round(value), -1.0, 1.0);
    }
    line.inputs[5].assign(line.inputs[5].size(), 0);
  }
  for (Doubles& input : line.inputs) input = rounded_to(input, c.type);
  line.d_o = rounded_to(line.d_o, c.type);
  line.o.assign(line.d_o.size(), std::nan(""));
  line.d_q = line.o;
  line.d_c.assign(line.inputs[1].size(), std::nan(""));
  line.lse.assign(static_cast<size_t>(tokens * c.attention.heads), std::nan(""));
  line.selected.resize(static_cast<size_t>(tokens));
  return line;
}

inline Doubles part_of(const Doubles& line, int64_t tokens, const Range& range) {
  const int64_t row = std::ssize(line) / tokens;
  return {line.begin() + range.begin * row, line.begin() + range.end * row};
}

inline void write_part(const Doubles& part, const Range& range, int64_t tokens, Doubles* line) {
  const int64_t row = std::ssize(*line) / tokens;
  ASSERT_EQ(std::ssize(part), range.size() * row);
  std::copy(part.begin(), part.end(), line->begin() + range.begin * row);
}

inline Line reference_line(const MixCase& c, Line line) {
  const int64_t tokens = c.layout.num_tokens();
  for (int32_t document = 0; document < c.layout.num_documents(); ++document) {
    const Range range = c.layout.document(document);
    std::vector<Doubles> inputs;
    for (const Doubles& input : line.inputs) inputs.push_back(part_of(input, tokens, range));
    const auto whole = static_cast<size_t>(range.size() / c.index.pool_tokens *
                                           c.index.pool_tokens * c.index.width);
    inputs[4].resize(whole);
    inputs[5].resize(whole);
    const Doubles pooled =
        reference::pool_keys(inputs[4], inputs[5], static_cast<size_t>(c.index.pool_tokens),
                             static_cast<size_t>(c.index.width));
    const auto selected = reference::select_pools(c.index, inputs[2], inputs[3], pooled);
    const auto result = reference::sparse_attention(c.attention, inputs[0], inputs[1], selected,
                                                    part_of(line.d_o, tokens, range));
    write_part(result.o, range, tokens, &line.o);
    write_part(result.lse, range, tokens, &line.lse);
    write_part(result.d_q, range, tokens, &line.d_q);
    write_part(result.d_latents, range, tokens, &line.d_c);
    std::copy(selected.begin(), selected.end(), line.selected.begin() + range.begin);
  }
  return line;
}

// Plays the executor on one rank: bands forward, then backward in reverse.
class RankRun {
 public:
  RankRun(const MixCase& c, const SparseAttentionMix& mix, Communicator& comm, Line* line)
      : case_(c),
        mix_(mix),
        comm_(comm),
        line_(*line),
        whole_(static_cast<size_t>(c.layout.num_chunks())),
        carried_(whole_.size()),
        outputs_(whole_.size()),
        choices_(whole_.size()),
        gradients_(whole_.size()) {}

  void run() {
    const int chunks = case_.layout.num_chunks();
    for (int begin = 0; begin < chunks; begin += case_.band) {
      const int end = std::min(chunks, begin + case_.band);
      for (int chunk = begin; chunk < end; ++chunk) forward(chunk, begin);
      for (int chunk = begin; chunk < end; ++chunk) {
        carried_[at(chunk)] = mix_.carry(call(chunk), whole_[at(chunk)], end);
        if (case_.repeat) whole_[at(chunk)] = {};
      }
    }
    for (int begin = (chunks - 1) / case_.band * case_.band; begin >= 0; begin -= case_.band) {
      backward_band(begin, std::min(chunks, begin + case_.band));
    }
  }

 private:
  static size_t at(int chunk) { return static_cast<size_t>(chunk); }
  int64_t tokens() const { return case_.layout.num_tokens(); }
  Range piece(int chunk) const { return case_.layout.piece(chunk, comm_.rank()); }

  MixCall call(int chunk) {
    return {.layer = 3,
            .layout = &case_.layout,
            .chunk = chunk,
            .comm = &comm_,
            .tag = 8192 + kTagsPerMix * chunk,
            .op = text("sparse attention, chunk ", chunk)};
  }
  at::Tensor rows(const Doubles& line, int chunk, const std::vector<int64_t>& row) const {
    std::vector<int64_t> sizes = {piece(chunk).size()};
    sizes.insert(sizes.end(), row.begin(), row.end());
    return tensor_of(part_of(line, tokens(), piece(chunk)), sizes)
        .to(at::TensorOptions(case_.type).device(case_.device));
  }
  std::vector<at::Tensor> inputs(int chunk) const {
    std::vector<at::Tensor> tensors;
    for (size_t idx = 0; idx < line_.inputs.size(); ++idx) {
      tensors.push_back(rows(line_.inputs[idx], chunk, mix_.input_rows()[idx]));
    }
    return tensors;
  }
  void write(const at::Tensor& tensor, int chunk, Doubles* line) {
    write_part(values_of<double>(tensor.to(at::kDouble).cpu()), piece(chunk), tokens(), line);
  }

  // Contexts of chunks before `chunk`: whole from `band_begin` on.
  std::vector<const MixContext*> contexts(int chunk, int band_begin) const {
    std::vector<const MixContext*> list;
    for (int idx = 0; idx < chunk; ++idx) {
      list.push_back(idx < band_begin ? &carried_[at(idx)] : &whole_[at(idx)]);
    }
    return list;
  }

  void forward(int chunk, int band_begin) {
    MixOutput output =
        mix_.forward(call(chunk), inputs(chunk), contexts(chunk, band_begin), choices_[at(chunk)]);
    whole_[at(chunk)] = std::move(output.context);
    outputs_[at(chunk)] = std::move(output.tensors);
    write(outputs_[at(chunk)][0], chunk, &line_.o);
    write(outputs_[at(chunk)][1], chunk, &line_.lse);
    const at::Tensor pools = choices_[at(chunk)][0].cpu();
    for (int64_t row = 0; row < pools.size(0); ++row) {
      std::vector<int32_t> selected;
      for (int64_t idx = 0; idx < pools.size(1); ++idx) {
        const int32_t pool = pools.const_data_ptr<int32_t>()[row * pools.size(1) + idx];
        if (pool >= 0) selected.push_back(pool);
      }
      line_.selected[static_cast<size_t>(piece(chunk).begin + row)] = std::move(selected);
    }
  }

  void backward_band(int begin, int end) {
    if (case_.repeat) {
      for (int chunk = begin; chunk < end; ++chunk) forward(chunk, begin);
    }
    for (int chunk = 0; chunk < end; ++chunk) {
      MixContextGradient& gradient = gradients_[at(chunk)];
      if (chunk >= begin) {
        MixContextGradient later = std::move(gradient);
        gradient = mix_.zero_gradient(call(chunk), whole_[at(chunk)], &later);
      } else if (!gradient.rows) {
        gradient = mix_.zero_gradient(call(chunk), carried_[at(chunk)], nullptr);
      }
    }
    for (int chunk = end - 1; chunk >= begin; --chunk) {
      MixBackwardInputs given{.inputs = inputs(chunk),
                              .output = outputs_[at(chunk)],
                              .output_gradient = rows(line_.d_o, chunk, mix_.output_row()),
                              .contexts = contexts(chunk + 1, begin),
                              .choices = choices_[at(chunk)]};
      for (int idx = 0; idx <= chunk; ++idx) given.gradients.push_back(&gradients_[at(idx)]);
      const std::vector<at::Tensor> gradients = mix_.backward(call(chunk), given);
      ASSERT_EQ(gradients.size(), 6U);
      write(gradients[0], chunk, &line_.d_q);
      write(gradients[1], chunk, &line_.d_c);
      for (size_t idx = 2; idx < 6; ++idx) EXPECT_FALSE(gradients[idx].defined());
    }
  }

  const MixCase& case_;
  const SparseAttentionMix& mix_;
  Communicator& comm_;
  Line& line_;
  std::vector<MixContext> whole_;
  std::vector<MixContext> carried_;
  std::vector<std::vector<at::Tensor>> outputs_;
  std::vector<std::vector<at::Tensor>> choices_;
  std::vector<MixContextGradient> gradients_;
};

inline SparseAttentionMix make_mix(const MixCase& c) {
  IndexPlanSource plans = planned_index_scoring(c.index, {});
  if (c.random_plans) {
    plans = [seed = c.seed](const TokenLayout& layout, int chunk) {
      return std::make_shared<const AttentionPlan>(
          random_plan(layout, chunk, Direction::kForward, seed, {.max_tasks = 10}));
    };
  }
  return SparseAttentionMix({.attention = c.attention,
                             .index = c.index,
                             .plans = plans,
                             .latents = c.travel,
                             .index_work_bytes = 1 << 20});
}

inline Line run_case(const MixCase& c) {
  const SparseAttentionMix mix = make_mix(c);
  Line line = random_line(c, mix);
  const RunRanksOptions options{.stall_timeout_s = 60, .device_memory = device_memory(c.device)};
  run_ranks(c.layout.num_ranks(), options, [&](Communicator& comm) {
    const DeviceThread on(c.device);
    at::set_num_threads(1);
    RankRun(c, mix, comm, &line).run();  // ranks write disjoint rows
    finish_work(c.device);
  });
  return line;
}

}  // namespace longspan
