// Time of linear attention (KDA) on a GPU: forward and backward of one document, with its short
// convolution.
//
//   build/cuda/longspan_kda_speed --tokens 8192 --heads 64
//   build/cuda/longspan_kda_speed --tokens 8192 --heads 64 --folder DIR    # bench/compare_kda.py
//
// Prints one line of JSON: median milliseconds of forward, of backward (which computes the chunks
// again, as a training step does), of both, and the most memory in use. With a folder the inputs
// are read from its files (raw arrays: qkv, g, beta, weight, d_o) and the results are written
// there.
#include <ATen/ATen.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <fstream>
#include <iostream>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "device/device.h"
#include "device/device_timer.h"
#include "linear_attention/kda_piece.h"

namespace longspan {
namespace {

struct Options {
  int64_t tokens = 8192;
  int64_t heads = 64;
  int64_t width = 128;
  int repeats = 11;
  std::string type = "bfloat16";
  std::string folder;

  at::ScalarType scalar_type() const {
    if (type == "bfloat16") return at::kBFloat16;
    if (type == "float32") return at::kFloat;
    if (type == "float64") return at::kDouble;
    throw UserError(text("--type must be bfloat16, float32 or float64, not ", type));
  }
};

const at::Device kGpu{at::kCUDA, 0};

at::Tensor read_array(const Options& options, const std::string& name,
                      const std::vector<int64_t>& sizes, at::ScalarType type) {
  const at::Tensor values = at::empty(sizes, type);
  const std::string path = options.folder + "/" + name;
  std::ifstream file(path, std::ios::binary);
  file.read(static_cast<char*>(values.mutable_data_ptr()),
            static_cast<std::streamsize>(values.nbytes()));
  if (!file) throw UserError(text(path, " does not hold ", values.nbytes(), " bytes"));
  return values.to(kGpu);
}

void write_array(const Options& options, const std::string& name, const at::Tensor& values) {
  const at::Tensor on_host = values.cpu().contiguous();
  std::ofstream file(options.folder + "/" + name, std::ios::binary);
  file.write(static_cast<const char*>(on_host.const_data_ptr()),
             static_cast<std::streamsize>(on_host.nbytes()));
  if (!file) throw UserError(text("cannot write to ", options.folder));
}

struct Arrays {
  KdaInputs inputs;
  at::Tensor weight;
  at::Tensor d_o;
};

Arrays make_arrays(const Options& options) {
  const int64_t T = options.tokens;
  const int64_t H = options.heads;
  const int64_t K = options.width;
  const at::ScalarType type = options.scalar_type();
  const at::ScalarType sums = accumulate_type(type);
  const std::vector<int64_t> qkv = {T, 3, H, K};
  const std::vector<int64_t> weight = {3, H, 4, K};
  if (!options.folder.empty()) {
    return {{read_array(options, "qkv", qkv, type), read_array(options, "g", {T, H, K}, sums),
             read_array(options, "beta", {T, H}, type)},
            read_array(options, "weight", weight, type),
            read_array(options, "d_o", {T, H, K}, type)};
  }
  const at::TensorOptions wide = at::TensorOptions(sums).device(kGpu);
  return {{at::randn(qkv, wide).to(type), -5 * at::sigmoid(at::randn({T, H, K}, wide) - 2),
           at::randn({T, H}, wide).sigmoid().to(type)},
          at::randn(weight, wide).to(type),
          at::randn({T, H, K}, wide).to(type)};
}

double median_ms(int repeats, const std::function<void()>& work) {
  std::vector<double> times;
  for (int repeat = 0; repeat < repeats + 2; ++repeat) {
    DeviceTimer timer(kGpu);
    timer.start();
    work();
    timer.stop();
    finish_work(kGpu);
    if (repeat >= 2) times.push_back(1e3 * timer.take_seconds());
  }
  std::nth_element(times.begin(), times.begin() + repeats / 2, times.end());
  return times[static_cast<size_t>(repeats / 2)];
}

void run(const Options& options) {
  device_from_name("cuda");  // or says that there is none
  const DeviceThread on(kGpu);
  const Arrays arrays = make_arrays(options);
  const LinearAttentionShape shape{
      .heads = options.heads, .key_width = options.width, .value_width = options.width};
  const at::Tensor before =
      at::empty({0, 3, options.heads, options.width}, arrays.weight.options());
  const auto make = [&] {
    return make_kda_piece({shape, {{0, options.tokens}}, arrays.inputs, before, arrays.weight});
  };
  const auto forward = [&] { return make()->forward({}, false).first; };
  const auto backward = [&] { return make()->backward(arrays.d_o, {}, {}); };
  if (!options.folder.empty()) {
    write_array(options, "o", forward());
    const KdaPiece::Gradients gradients = backward();
    write_array(options, "d_qkv", gradients.inputs.qkv_T3HK);
    write_array(options, "d_g", gradients.inputs.g_THK);
    write_array(options, "d_beta", gradients.inputs.beta_TH);
    write_array(options, "d_weight", gradients.weight_3HNK);
  }
  nlohmann::json line = {{"tokens", options.tokens},
                         {"heads", options.heads},
                         {"width", options.width},
                         {"type", options.type}};
  line["forward_ms"] = median_ms(options.repeats, [&] { forward(); });
  line["backward_ms"] = median_ms(options.repeats, [&] { backward(); });
  line["ms"] = median_ms(options.repeats, [&] {
    forward();
    backward();
  });
  line["peak_gib"] = static_cast<double>(device_bytes_peak(kGpu)) / (1 << 30);
  std::cout << line.dump() << "\n";
}

}  // namespace
}  // namespace longspan

int main(int argc, char** argv) {
  longspan::Options options;
  CLI::App app("Time of linear attention on a GPU");
  app.add_option("--tokens", options.tokens);
  app.add_option("--heads", options.heads);
  app.add_option("--width", options.width);
  app.add_option("--repeats", options.repeats)->check(CLI::PositiveNumber);
  app.add_option("--type", options.type, "bfloat16, float32 or float64");
  app.add_option("--folder", options.folder, "of input files; results are written there");
  CLI11_PARSE(app, argc, argv);
  try {
    longspan::run(options);
  } catch (const std::exception& error) {
    std::cerr << "error: " << error.what() << "\n";
    return 1;
  }
  std::cout.flush();
  std::_Exit(0);  // libtorch's teardown aborts on some machines
}
