// KDA in chunks against the recurrence token by token: values, states, maps, all gradients.
#include "kernels/cpu/kda.h"

#include <gtest/gtest.h>

#include "kernels/cpu/kda_test_values.h"
#include "kernels/cpu/reference_kda.h"

namespace longspan {
namespace {

// How strong the decay is: g = -strength * (uniform in (0, 1)), or 0 and strong in turns.
enum class Decay { kWeak, kBounded, kUnbounded, kMixed };

struct Problem {
  int64_t rows = 0;
  int64_t K = 0;
  int64_t V = 0;
  Values q, k, v, g, beta, state, d_o, d_state;

  LinearAttentionShape shape() const { return {.heads = 1, .key_width = K, .value_width = V}; }
};

Problem make_problem(int64_t rows, int64_t K, int64_t V, Decay decay, uint64_t seed) {
  RandomStream random(seed, "kda test");
  Problem problem{rows, K, V};
  const auto width = static_cast<size_t>(K);
  problem.q = reference::unit_rows(width, 1 / std::sqrt(static_cast<double>(K)),
                                   random_values(random, rows * K, 1));
  problem.k = reference::unit_rows(width, 1, random_values(random, rows * K, 1));
  problem.v = random_values(random, rows * V, 1);
  for (int64_t i = 0; i < rows * K; ++i) {
    const double share = random.uniform();
    const bool strong = random.uniform() < 0.1;
    problem.g.push_back(decay == Decay::kWeak      ? -0.02 * share
                        : decay == Decay::kBounded ? -5 * share
                        : decay == Decay::kMixed   ? (strong ? -5 * share : -0.001 * share)
                                                   : -60 * share);
  }
  for (int64_t i = 0; i < rows; ++i) problem.beta.push_back(random.uniform());
  problem.state = random_values(random, K * V, 1);
  problem.d_o = random_values(random, rows * V, 1);
  problem.d_state = random_values(random, K * V, 1);
  return problem;
}

reference::KdaResult expected_of(const Problem& p) {
  return reference::kda(static_cast<size_t>(p.K), static_cast<size_t>(p.V), p.q, p.k, p.v, p.g,
                        p.beta, p.state);
}

// The problem in the type of the kernel.
template <typename Real>
struct Cast {
  explicit Cast(const Problem& p)
      : q(as<Real>(p.q)),
        k(as<Real>(p.k)),
        v(as<Real>(p.v)),
        g(as<Real>(p.g)),
        beta(as<Real>(p.beta)),
        state(as<Real>(p.state)),
        d_o(as<Real>(p.d_o)),
        d_state(as<Real>(p.d_state)),
        in{p.rows,          {q.data(), p.K}, {k.data(), p.K},
           {v.data(), p.V}, {g.data(), p.K}, {beta.data(), 1}} {}

  std::vector<Real> q, k, v, g, beta, state, d_o, d_state;
  KdaStretch<Real> in;
};

template <typename Real>
void expect_equals_recurrence(const Problem& problem, double tolerance) {
  const Cast<Real> cast(problem);
  const KdaScratch<Real> scratch(problem.shape());
  std::vector<Real> o(problem.d_o.size());
  std::vector<Real> state(problem.state.size());
  kda_forward(problem.shape(), cast.in, cast.state.data(), {o.data(), problem.V}, state.data(),
              scratch);
  const reference::KdaResult expected = expected_of(problem);
  EXPECT_LT(relative_error(o, expected.o), tolerance) << problem.rows << " rows";
  EXPECT_LT(relative_error(state, expected.state), tolerance) << problem.rows << " rows";
}

TEST(Kda, EqualsTheRecurrence) {
  for (const Decay decay : {Decay::kWeak, Decay::kBounded, Decay::kUnbounded, Decay::kMixed}) {
    SCOPED_TRACE(static_cast<int>(decay));
    for (int64_t rows = 1; rows <= 200; ++rows) {
      const Problem problem = make_problem(rows, 20, 11, decay, static_cast<uint64_t>(rows));
      expect_equals_recurrence<double>(problem, 1e-12);
      expect_equals_recurrence<float>(problem, 6e-6);
    }
    const Problem wide = make_problem(1024, 128, 128, decay, 5);
    expect_equals_recurrence<double>(wide, 1e-12);
    expect_equals_recurrence<float>(wide, 6e-6);
  }
}

TEST(Kda, NoStateBeforeIsZeroAndStridesAreKept) {
  Problem problem = make_problem(70, 8, 8, Decay::kBounded, 3);
  std::fill(problem.state.begin(), problem.state.end(), 0.0);
  const Cast<double> cast(problem);
  // Rows of o with a gap of 3 values.
  std::vector<double> o(static_cast<size_t>(70 * 11), 7.0);
  kda_forward<double>(problem.shape(), cast.in, nullptr, {o.data(), 11}, nullptr,
                      KdaScratch<double>(problem.shape()));
  const Values expected = expected_of(problem).o;
  for (size_t i = 0; i < 70; ++i) {
    EXPECT_NEAR(o[i * 11 + 7], expected[i * 8 + 7], 1e-13);
    EXPECT_EQ(o[i * 11 + 8], 7.0);
  }
}

struct Gradients {
  explicit Gradients(const Problem& p)
      : q(p.q.size()),
        k(p.k.size()),
        v(p.v.size()),
        g(p.g.size()),
        beta(p.beta.size()),
        state(p.state.size()) {}
  Values q, k, v, g, beta, state;
};

Gradients gradients_of(const Problem& p) {
  const Cast<double> cast(p);
  Gradients out(p);
  Values states(static_cast<size_t>(kda_states_before(p.rows)) * p.state.size());
  kda_backward<double>(p.shape(), cast.in, p.state.data(), {p.d_o.data(), p.V}, p.d_state.data(),
                       {{out.q.data(), p.K},
                        {out.k.data(), p.K},
                        {out.v.data(), p.V},
                        {out.g.data(), p.K},
                        {out.beta.data(), 1}},
                       out.state.data(), states.data(), KdaScratch<double>(p.shape()));
  return out;
}

TEST(Kda, GradientsByFiniteDifferences) {
  for (const Decay decay : {Decay::kWeak, Decay::kBounded, Decay::kUnbounded, Decay::kMixed}) {
    SCOPED_TRACE(static_cast<int>(decay));
    for (const int64_t rows : {1, 2, 3, 15, 16, 17, 33, 63, 64, 65, 150}) {
      SCOPED_TRACE(rows);
      const Problem problem = make_problem(rows, 9, 6, decay, static_cast<uint64_t>(rows));
      const Gradients gradients = gradients_of(problem);
      RandomStream random(7, "directions");
      const auto check = [&](Values Problem::*input, const Values& gradient, const char* name) {
        const auto objective = [&](const Values& moved) {
          Problem changed = problem;
          changed.*input = moved;
          const reference::KdaResult result = expected_of(changed);
          return dot(result.o, problem.d_o) + dot(result.state, problem.d_state);
        };
        for (int direction = 0; direction < 4; ++direction) {
          EXPECT_LT(derivative_error(problem.*input, gradient, objective, random), 1e-8) << name;
        }
      };
      check(&Problem::q, gradients.q, "q");
      check(&Problem::k, gradients.k, "k");
      check(&Problem::v, gradients.v, "v");
      check(&Problem::g, gradients.g, "g");
      check(&Problem::beta, gradients.beta, "beta");
      check(&Problem::state, gradients.state, "state before");
    }
  }
}

TEST(Kda, FloatGradientsAreNearDoubleOnes) {
  for (const Decay decay : {Decay::kWeak, Decay::kBounded, Decay::kUnbounded, Decay::kMixed}) {
    SCOPED_TRACE(static_cast<int>(decay));
    const Problem p = make_problem(300, 64, 64, decay, 8);
    const Gradients expected = gradients_of(p);
    const Cast<float> cast(p);
    std::vector<float> q(p.q.size()), k(p.k.size()), v(p.v.size()), g(p.g.size()),
        beta(p.beta.size()), state(p.state.size());
    std::vector<float> states(static_cast<size_t>(kda_states_before(p.rows)) * p.state.size());
    kda_backward<float>(
        p.shape(), cast.in, cast.state.data(), {cast.d_o.data(), p.V}, cast.d_state.data(),
        {{q.data(), p.K}, {k.data(), p.K}, {v.data(), p.V}, {g.data(), p.K}, {beta.data(), 1}},
        state.data(), states.data(), KdaScratch<float>(p.shape()));
    EXPECT_LT(relative_error(q, expected.q), 1e-5);
    EXPECT_LT(relative_error(k, expected.k), 1e-5);
    EXPECT_LT(relative_error(v, expected.v), 1e-5);
    EXPECT_LT(relative_error(g, expected.g), 1e-4);
    EXPECT_LT(relative_error(beta, expected.beta), 1e-5);
    EXPECT_LT(relative_error(state, expected.state), 1e-5);
  }
}

// x = offset + matrix * y, from the columns of a map.
Values apply_map(const Problem& p, const Values& map, const Values& y) {
  const auto K = static_cast<size_t>(p.K);
  const auto V = static_cast<size_t>(p.V);
  Values x(K * V);
  for (size_t row = 0; row < K; ++row) {
    for (size_t c = 0; c < V; ++c) {
      double sum = map[row * (V + K) + c];
      for (size_t d = 0; d < K; ++d) sum += map[row * (V + K) + V + d] * y[d * V + c];
      x[row * V + c] = sum;
    }
  }
  return x;
}

TEST(Kda, MapsOfAStretchGiveStatesAndTheirGradients) {
  for (const int64_t rows : {0, 1, 5, 64, 65, 200}) {
    SCOPED_TRACE(rows);
    Problem p = make_problem(rows, 9, 6, Decay::kMixed, static_cast<uint64_t>(rows) + 1);
    const Cast<double> cast(p);
    const KdaScratch<double> scratch(p.shape());
    Values map(static_cast<size_t>(p.K * (p.K + p.V)));
    kda_map(p.shape(), cast.in, true, map.data(), scratch);
    EXPECT_LT(relative_error(apply_map(p, map, p.state), expected_of(p).state), 1e-12);
    Values offset(p.state.size());
    kda_map(p.shape(), cast.in, false, offset.data(), scratch);
    EXPECT_LT(relative_error(offset, apply_map(p, map, Values(p.state.size()))), 1e-12);
    if (rows == 0) continue;
    kda_gradient_map<double>(p.shape(), cast.in, {p.d_o.data(), p.V}, true, map.data(), scratch);
    EXPECT_LT(relative_error(apply_map(p, map, p.d_state), gradients_of(p).state), 1e-12);
    kda_gradient_map<double>(p.shape(), cast.in, {p.d_o.data(), p.V}, false, offset.data(),
                             scratch);
    EXPECT_LT(relative_error(offset, apply_map(p, map, Values(p.state.size()))), 1e-12);
  }
}

}  // namespace
}  // namespace longspan
