// Whole models on one rank, with plain attention between the segments, against the same models
// written in torch's own operations with torch's own gradients.
#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>

#include <numeric>

#include "layers/rope_table.h"
#include "layers/segment.h"
#include "layers/test_parameters.h"
#include "model/initialize.h"
#include "model/transformer_model.h"

namespace longspan {
namespace {

using Tensors = std::vector<at::Tensor>;

struct Documents {
  std::vector<int64_t> lengths;
  std::vector<int64_t> positions;
  std::vector<int32_t> tokens;
  std::vector<int32_t> targets;
  std::vector<float> weights;
  double weight_sum = 0;
};

Documents random_documents(std::vector<int64_t> lengths, int64_t vocabulary, uint64_t seed) {
  RandomStream random(seed, "documents");
  Documents documents;
  documents.lengths = std::move(lengths);
  for (const int64_t length : documents.lengths) {
    for (int64_t t = 0; t < length; ++t) {
      const bool last = t + 1 == length;
      documents.positions.push_back(t);
      documents.tokens.push_back(static_cast<int32_t>(random.between(0, vocabulary - 1)));
      documents.targets.push_back(last ? -1
                                       : static_cast<int32_t>(random.between(0, vocabulary - 1)));
      documents.weights.push_back(last ? 0.0f : static_cast<float>(0.5 + random.uniform()));
      documents.weight_sum += static_cast<double>(documents.weights.back());
    }
  }
  return documents;
}

// Causal attention of each document by itself, with every score in memory.
at::Tensor attention_formula(const Tensors& qkv, const std::vector<int64_t>& lengths) {
  Tensors outputs;
  const int64_t group = qkv[0].size(1) / qkv[1].size(1);
  int64_t begin = 0;
  for (const int64_t length : lengths) {
    const at::Tensor q = qkv[0].narrow(0, begin, length).transpose(0, 1);
    const at::Tensor k =
        qkv[1].narrow(0, begin, length).transpose(0, 1).repeat_interleave(group, 0);
    const at::Tensor v =
        qkv[2].narrow(0, begin, length).transpose(0, 1).repeat_interleave(group, 0);
    const at::Tensor hidden = at::ones({length, length}, at::kBool).triu(1);
    const at::Tensor scores =
        (q.matmul(k.transpose(1, 2)) / std::sqrt(static_cast<double>(q.size(2))))
            .masked_fill(hidden, -std::numeric_limits<double>::infinity());
    outputs.push_back(scores.softmax(2).matmul(v).transpose(0, 1));
    begin += length;
  }
  return at::cat(outputs).contiguous();
}

// ---- the model under test, driven as an executor drives it

struct RunResult {
  double loss = 0;
  std::vector<double> token_losses;
  Tensors gradients;
  int64_t stored_bytes = 0;  // of all segments together, if nothing is recomputed
};

RunResult run_model(const TransformerModel& model, TestParameters& parameters,
                    const Documents& documents, bool recompute) {
  const ParameterAccess access = parameters.access();
  const auto rope = model.rope_table(documents.positions);
  const auto pre_body = [&](int64_t layer) {
    return [&model, access, rope, layer](const Tensors& in) {
      return model.pre(access, layer, in[0], {rope, {}});
    };
  };
  const auto post_body = [&](int64_t layer) {
    return [&model, access, layer](const Tensors& in) {
      return Tensors{model.post(access, layer, {in[0], in[1], {}})};
    };
  };
  const auto layers = static_cast<size_t>(model.num_layers());
  std::vector<Segment> pre(layers);
  std::vector<Segment> post(layers);
  Tensors hidden = {model.embed(access, documents.tokens)};
  Tensors attention_outputs;
  std::vector<Tensors> qkv;
  for (size_t layer = 0; layer < layers; ++layer) {
    const auto index = static_cast<int64_t>(layer);
    if (recompute) {
      qkv.push_back(Segment::run(pre_body(index), {hidden[layer]}));
    } else {
      pre[layer] = Segment::record(pre_body(index), {hidden[layer]});
      qkv.push_back(pre[layer].outputs());
    }
    attention_outputs.push_back(attention_formula(qkv[layer], documents.lengths));
    const Tensors inputs = {attention_outputs[layer], hidden[layer]};
    if (recompute) {
      hidden.push_back(Segment::run(post_body(index), inputs)[0]);
    } else {
      post[layer] = Segment::record(post_body(index), inputs);
      hidden.push_back(post[layer].outputs()[0]);
    }
  }
  RunResult result;
  StorageSet stored;
  for (const Segment& segment : pre) segment.add_storages(stored);
  for (const Segment& segment : post) segment.add_storages(stored);
  result.stored_bytes = stored.bytes();
  result.token_losses = model.token_losses(access, hidden.back(), documents.targets);

  for (at::Tensor& gradient : parameters.gradients) gradient.zero_();
  HeadLossResult head = model.head_loss(
      access, hidden.back(), {documents.targets, documents.weights}, 1 / documents.weight_sum);
  result.loss = head.weighted_loss_sum.item<double>() / documents.weight_sum;
  at::Tensor dx = head.dx_TC;
  for (size_t layer = layers; layer-- > 0;) {
    const auto index = static_cast<int64_t>(layer);
    if (recompute) {
      pre[layer] = Segment::record(pre_body(index), {hidden[layer]});
      post[layer] = Segment::record(post_body(index), {attention_outputs[layer], hidden[layer]});
    }
    const Tensors post_gradients = post[layer].backward({dx});
    Tensors leaves;
    for (const at::Tensor& tensor : qkv[layer]) {
      leaves.push_back(tensor.detach().set_requires_grad(true));
    }
    const Tensors dqkv = torch::autograd::grad({attention_formula(leaves, documents.lengths)},
                                               leaves, {post_gradients[0]});
    dx = pre[layer].backward(dqkv)[0] + post_gradients[1];
  }
  model.embed_backward(access, documents.tokens, dx);
  for (const at::Tensor& gradient : parameters.gradients) {
    result.gradients.push_back(gradient.clone());
  }
  return result;
}

// ---- the same model as formulas

at::Tensor norm_formula(const at::Tensor& x, const at::Tensor& weight, double epsilon) {
  return x * (x * x).mean(-1, true).add(epsilon).rsqrt() * weight;
}

at::Tensor rope_formula(const at::Tensor& q_THK, const ModelSpec& spec,
                        const std::vector<int64_t>& positions) {
  const RopeFrequencies rope = rope_frequencies(spec.rope, spec.head_dim);
  const at::Tensor half =
      at::tensor(positions, at::kFloat).unsqueeze(1) * at::tensor(rope.inverse).unsqueeze(0);
  const at::Tensor angles = at::cat({half, half}, 1).unsqueeze(1).to(q_THK.scalar_type());
  const auto parts = q_THK.chunk(2, 2);
  return (q_THK * angles.cos() + at::cat({-parts[1], parts[0]}, 2) * angles.sin()) *
         rope.attention_scaling;
}

at::Tensor losses_formula(const ModelSpec& spec, const Tensors& weights,
                          const Documents& documents) {
  const ParameterTable table(spec);
  const auto weight = [&](ParameterId id) { return weights[static_cast<size_t>(id)]; };
  const double epsilon = spec.rms_norm_eps;
  at::Tensor x = weight(table.embedding()).index_select(0, at::tensor(documents.tokens, at::kLong));
  for (int64_t layer = 0; layer < spec.num_layers; ++layer) {
    const LayerParameters& ids = table.layer(layer);
    const at::Tensor normed = norm_formula(x, weight(ids.input_norm), epsilon);
    const auto heads = [&](ParameterId id) {
      return normed.mm(weight(id).t()).reshape({x.size(0), -1, spec.head_dim});
    };
    Tensors qkv = {heads(ids.q_proj), heads(ids.k_proj), heads(ids.v_proj)};
    if (spec.has_head_norms()) {
      qkv[0] = norm_formula(qkv[0], weight(ids.q_norm), epsilon);
      qkv[1] = norm_formula(qkv[1], weight(ids.k_norm), epsilon);
    }
    qkv[0] = rope_formula(qkv[0], spec, documents.positions);
    qkv[1] = rope_formula(qkv[1], spec, documents.positions);
    const at::Tensor o = attention_formula(qkv, documents.lengths).reshape({x.size(0), -1});
    x = x + o.mm(weight(ids.o_proj).t());
    const at::Tensor h = norm_formula(x, weight(ids.post_attention_norm), epsilon);
    const at::Tensor gate = h.mm(weight(ids.gate_proj).t());
    x = x + (gate * gate.sigmoid() * h.mm(weight(ids.up_proj).t())).mm(weight(ids.down_proj).t());
  }
  const at::Tensor logits =
      norm_formula(x, weight(table.final_norm()), epsilon).mm(weight(table.head()).t());
  const at::Tensor targets = at::tensor(documents.targets, at::kLong);
  return -logits.log_softmax(1).gather(1, targets.clamp_min(0).unsqueeze(1)).squeeze(1) *
         targets.ge(0);
}

RunResult run_formulas(const ModelSpec& spec, const TestParameters& parameters,
                       const Documents& documents) {
  Tensors weights;
  for (const at::Tensor& weight : parameters.weights) {
    weights.push_back(weight.to(at::kDouble).detach().clone().set_requires_grad(true));
  }
  const at::Tensor losses = losses_formula(spec, weights, documents);
  const at::Tensor loss = (losses * at::tensor(documents.weights)).sum() / documents.weight_sum;
  RunResult result;
  result.loss = loss.item<double>();
  const at::Tensor values = losses.detach().contiguous();
  result.token_losses.assign(values.const_data_ptr<double>(),
                             values.const_data_ptr<double>() + values.numel());
  result.gradients = torch::autograd::grad({loss}, weights);
  return result;
}

// ---- models

ModelSpec tiny_spec(ModelFamily family, bool tied) {
  ModelSpec spec;
  spec.family = family;
  spec.vocab_size = 37;
  spec.hidden_size = 24;
  spec.intermediate_size = 40;
  spec.num_layers = 3;
  spec.num_query_heads = 6;
  spec.num_kv_heads = 2;
  spec.head_dim = 8;
  spec.max_position_embeddings = 4096;
  spec.tied_embeddings = tied;
  spec.rms_norm_eps = 1e-5;
  spec.initializer_range = 0.15;
  spec.rope.theta = 1000;
  return spec;
}

// Initial weights with norms that are not all ones.
TestParameters make_parameters(const ModelSpec& spec, at::ScalarType type, uint64_t seed) {
  std::vector<std::vector<int64_t>> shapes;
  const ParameterTable table(spec);
  for (const Parameter& parameter : table.parameters()) shapes.push_back(parameter.shape);
  TestParameters result(shapes, type, seed);
  for (size_t i = 0; i < shapes.size(); ++i) {
    const Parameter& parameter = table.parameters()[i];
    result.weights[i].mul_(parameter.init == InitKind::kOnes ? 0.2 : parameter.init_std);
    if (parameter.init == InitKind::kOnes) result.weights[i].add_(1);
  }
  return result;
}

const std::vector<int64_t> kLengths = {1, 2, 127, 128, 129, 1, 60};

class WholeModel : public testing::TestWithParam<std::tuple<ModelFamily, bool>> {
 protected:
  ModelSpec spec_ = tiny_spec(std::get<0>(GetParam()), std::get<1>(GetParam()));
};

void expect_close(const ModelSpec& spec, const RunResult& result, const RunResult& expected,
                  double bound) {
  EXPECT_NEAR(result.loss, expected.loss, bound * expected.loss);
  EXPECT_LT(relative_error(at::tensor(result.token_losses, at::kDouble),
                           at::tensor(expected.token_losses, at::kDouble)),
            bound);
  const ParameterTable table(spec);
  ASSERT_EQ(result.gradients.size(), expected.gradients.size());
  for (size_t i = 0; i < expected.gradients.size(); ++i) {
    EXPECT_GT(expected.gradients[i].norm().item<double>(), 0) << table.parameters()[i].name;
    EXPECT_LT(relative_error(result.gradients[i], expected.gradients[i]), bound)
        << table.parameters()[i].name;
  }
}

// Sums of at most a few hundred terms: 1e-12 leaves double rounding room, and shows any other
// difference.
TEST_P(WholeModel, EqualsItsFormulasInFloat64) {
  const auto model = make_model(spec_, at::kDouble);
  TestParameters parameters = make_parameters(spec_, at::kDouble, 1);
  const Documents documents = random_documents(kLengths, spec_.vocab_size, 2);
  expect_close(spec_, run_model(*model, parameters, documents, false),
               run_formulas(spec_, parameters, documents), 1e-12);
}

TEST_P(WholeModel, EqualsItsFormulasInFloat32) {
  const auto model = make_model(spec_, at::kFloat);
  TestParameters parameters = make_parameters(spec_, at::kFloat, 1);
  const Documents documents = random_documents(kLengths, spec_.vocab_size, 2);
  expect_close(spec_, run_model(*model, parameters, documents, false),
               run_formulas(spec_, parameters, documents), 1e-5);
}

void expect_same_bits(const RunResult& a, const RunResult& b) {
  EXPECT_EQ(a.loss, b.loss);
  EXPECT_EQ(a.token_losses, b.token_losses);
  for (size_t i = 0; i < a.gradients.size(); ++i) {
    EXPECT_TRUE(at::equal(a.gradients[i], b.gradients[i])) << i;
  }
}

TEST_P(WholeModel, RecomputedSegmentsGiveTheSameBits) {
  const auto model = make_model(spec_, at::kFloat);
  TestParameters parameters = make_parameters(spec_, at::kFloat, 1);
  const Documents documents = random_documents(kLengths, spec_.vocab_size, 2);
  expect_same_bits(run_model(*model, parameters, documents, false),
                   run_model(*model, parameters, documents, true));
}

// Between the ends of a layer: x, o, h, gate and up, q, k, v and, with head norms, q and k before
// them; and a few numbers a token.
TEST_P(WholeModel, SegmentsStoreWhatTheyNeedAndNoMore) {
  const auto model = make_model(spec_, at::kFloat);
  TestParameters parameters = make_parameters(spec_, at::kFloat, 1);
  const Documents documents = random_documents(kLengths, spec_.vocab_size, 2);
  const RunResult result = run_model(*model, parameters, documents, false);
  const int64_t queries_and_keys = spec_.query_width() + spec_.kv_width();
  const int64_t norms_of_heads = spec_.num_query_heads + spec_.num_kv_heads;
  int64_t row = 2 * spec_.hidden_size + spec_.query_width() + 2 * spec_.intermediate_size +
                queries_and_keys + spec_.kv_width() + 2;
  if (spec_.has_head_norms()) row += queries_and_keys + norms_of_heads;
  const auto tokens = static_cast<int64_t>(documents.tokens.size());
  EXPECT_EQ(result.stored_bytes, 4 * tokens * (spec_.num_layers * row + spec_.hidden_size));
}

INSTANTIATE_TEST_SUITE_P(Families, WholeModel,
                         testing::Combine(testing::Values(ModelFamily::kLlama, ModelFamily::kQwen3),
                                          testing::Bool()));

// Our own operations keep the bits for any shape. The matrix products are the BLAS library's: with
// widths that fill its tiles it cuts the work so that every sum stays whole; with odd ones (a
// vocabulary of 37) it does not. Same bits for the same layout and threads hold regardless.
TEST(Model, BitsDoNotDependOnTheNumberOfThreads) {
  ModelSpec spec = tiny_spec(ModelFamily::kQwen3, false);
  spec.vocab_size = 64;
  spec.hidden_size = 96;
  spec.intermediate_size = 272;
  spec.head_dim = 32;
  const auto model = make_model(spec, at::kFloat);
  TestParameters parameters = make_parameters(spec, at::kFloat, 1);
  const Documents documents = random_documents({300, 1, 213}, spec.vocab_size, 2);
  at::set_num_threads(1);
  const RunResult one = run_model(*model, parameters, documents, false);
  at::set_num_threads(2);
  expect_same_bits(one, run_model(*model, parameters, documents, false));
  at::set_num_threads(3);
  expect_same_bits(one, run_model(*model, parameters, documents, false));
  at::set_num_threads(1);
}

TEST(Initialize, SlicesAreTheWhole) {
  const Parameter parameter{.name = "a.weight", .shape = {97, 131}, .init_std = 0.5};
  const int64_t elements = parameter.elements();
  std::vector<double> whole(static_cast<size_t>(elements));
  initialize_parameter(parameter, 7, {0, elements}, std::span(whole));
  RandomStream random(3, "slices");
  for (int trial = 0; trial < 50; ++trial) {
    const int64_t begin = random.between(0, elements);
    const int64_t end = random.between(begin, elements);
    std::vector<float> slice(static_cast<size_t>(end - begin));
    initialize_parameter(parameter, 7, {begin, end}, std::span(slice));
    for (size_t i = 0; i < slice.size(); ++i) {
      ASSERT_EQ(slice[i], static_cast<float>(whole[static_cast<size_t>(begin) + i])) << i;
    }
  }
}

TEST(Initialize, NormalMatricesAndNormsOfOnes) {
  const Parameter matrix{.name = "a.weight", .shape = {200, 300}, .init_std = 0.5};
  std::vector<double> values(60000);
  initialize_parameter(matrix, 7, {0, 60000}, std::span(values));
  const double sum = std::accumulate(values.begin(), values.end(), 0.0);
  const double squares = std::inner_product(values.begin(), values.end(), values.begin(), 0.0);
  EXPECT_NEAR(sum / 60000, 0, 5 * 0.5 / std::sqrt(60000));
  EXPECT_NEAR(squares / 60000, 0.25, 5 * 0.25 * std::sqrt(2.0 / 60000));

  std::vector<double> other(60000);
  initialize_parameter({.name = "b.weight", .shape = {200, 300}, .init_std = 0.5}, 7, {0, 60000},
                       std::span(other));
  EXPECT_NEAR(std::inner_product(values.begin(), values.end(), other.begin(), 0.0) / squares, 0,
              5 / std::sqrt(60000));

  std::vector<float> ones(5);
  initialize_parameter({.name = "n", .shape = {9}, .init = InitKind::kOnes}, 7, {2, 7},
                       std::span(ones));
  EXPECT_EQ(ones, std::vector<float>(5, 1.0f));
  EXPECT_THROW(initialize_parameter(matrix, 7, {0, 4}, std::span(ones)), InternalError);
}

}  // namespace
}  // namespace longspan
