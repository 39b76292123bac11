// Times of linear attention on one rank: forward, maps and backward of one document.
//
//   build/release/src/linear_attention/kda_piece_bench [tokens heads width threads]
//
// Prints milliseconds, the best of a few runs, and GFLOP/s of the products of the chunked form.
#include <ATen/ATen.h>
#include <ATen/Parallel.h>

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <functional>

#include "linear_attention/kda_piece.h"

namespace longspan {
namespace {

double best_ms(const std::function<void()>& work) {
  double best = 1e300;
  for (int run = 0; run < 4; ++run) {
    const auto start = std::chrono::steady_clock::now();
    work();
    const std::chrono::duration<double, std::milli> ms = std::chrono::steady_clock::now() - start;
    best = std::min(best, ms.count());
  }
  return best;
}

void run(int64_t T, int64_t H, int64_t K) {
  const at::TensorOptions options(at::kFloat);
  const KdaInputs inputs{at::randn({T, 3, H, K}, options), -5 * at::rand({T, H, K}, options),
                         at::rand({T, H}, options)};
  const LinearAttentionShape shape{.heads = H, .key_width = K, .value_width = K};
  const auto make = [&] {
    return make_kda_piece({shape,
                           {{0, T}},
                           inputs,
                           at::zeros({0, 3, H, K}, options),
                           at::rand({3, H, 4, K}, options)});
  };
  const std::unique_ptr<KdaPiece> piece = make();
  const at::Tensor d_o = at::randn({T, H, K}, options);
  const auto report = [&](const char* what, double flops, const std::function<void()>& work) {
    const double ms = best_ms(work);
    std::printf("%-28s %9.2f ms %8.1f GFLOP/s\n", what, ms, flops / ms * 1e-6);
  };
  // Forward: 10 C K + 6 K V a token and head (chunk C of 64 rows); backward about twice that.
  const double forward = static_cast<double>(T * H) * static_cast<double>(640 * K + 6 * K * K);
  std::printf("%ld tokens, %ld heads of %ld, %d threads\n", static_cast<long>(T),
              static_cast<long>(H), static_cast<long>(K), at::get_num_threads());
  report("convolution, unit vectors", 0, [&] { make(); });
  report("outputs", forward, [&] { piece->forward({}, true); });
  report("map of states", forward, [&] { piece->map(true); });
  report("map of gradients", forward, [&] { piece->gradient_map(d_o, true); });
  report("backward", 2 * forward, [&] { piece->backward(d_o, {}, {}); });
}

}  // namespace
}  // namespace longspan

int main(int argc, char** argv) {
  const auto argument = [&](int idx, int64_t otherwise) {
    return idx < argc ? std::atoll(argv[idx]) : otherwise;
  };
  at::set_num_threads(static_cast<int>(argument(4, 1)));
  longspan::run(argument(1, 4096), argument(2, 4), argument(3, 128));
  return 0;
}
