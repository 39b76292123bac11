#include "kernels/cpu/hyper_connection.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <vector>

#include "kernels/cpu/vector_math.h"

namespace longspan {
namespace {

constexpr int64_t kMaxMix = kMaxHyperStreams * kMaxHyperStreams;

// One token's maps from its raw numbers.
template <typename Real>
struct Maps {
  std::array<Real, kMaxHyperStreams> read_gate;   // the plain logistic
  std::array<Real, kMaxHyperStreams> write_gate;  // the plain logistic
  std::array<Real, kMaxMix> softmax;
};

template <typename Real>
Maps<Real> maps_from_raw(const HyperShape& shape, const HyperReadInputs<Real>& inputs,
                         const Real* raw) {
  const int64_t n = shape.streams;
  const Real* base = inputs.base;
  Maps<Real> maps;
  for (int64_t i = 0; i < n; ++i) {
    const auto at = static_cast<size_t>(i);
    maps.read_gate[at] = vector_logistic(inputs.scale[0] * raw[i] + base[i]);
    maps.write_gate[at] = vector_logistic(inputs.scale[1] * raw[n + i] + base[n + i]);
  }
  for (int64_t i = 0; i < n; ++i) {
    Real* row = maps.softmax.data() + i * n;
    for (int64_t j = 0; j < n; ++j) {
      const int64_t at = 2 * n + i * n + j;
      row[j] = inputs.scale[2] * raw[at] + base[at];
    }
    const Real largest = *std::max_element(row, row + n);
    Real sum = 0;
    for (int64_t j = 0; j < n; ++j) sum += row[j] = vector_exp(row[j] - largest);
    for (int64_t j = 0; j < n; ++j) row[j] /= sum;
  }
  return maps;
}

// Lines of an N x N matrix along one axis: line l, its k-th element.
struct Lines {
  int64_t line_stride;
  int64_t element_stride;
};

Lines columns_of(int64_t n) {
  return {1, n};
}
Lines rows_of(int64_t n) {
  return {n, 1};
}

// Each line divided by (its sum + epsilon). The divisors go to `divisors`.
template <typename Real>
void normalize_lines(int64_t n, Lines lines, Real epsilon, Real* mix, Real* divisors) {
  for (int64_t line = 0; line < n; ++line) {
    Real* first = mix + line * lines.line_stride;
    Real divisor = epsilon;
    for (int64_t k = 0; k < n; ++k) divisor += first[k * lines.element_stride];
    for (int64_t k = 0; k < n; ++k) first[k * lines.element_stride] /= divisor;
    divisors[line] = divisor;
  }
}

// y = x / (sum x + epsilon):  dx = (dy - <dy, y>) / (sum x + epsilon), in place.
template <typename Real>
void normalize_lines_backward(int64_t n, Lines lines, const Real* result, const Real* divisors,
                              Real* gradient) {
  for (int64_t line = 0; line < n; ++line) {
    const Real* y = result + line * lines.line_stride;
    Real* d = gradient + line * lines.line_stride;
    Real dot = 0;
    for (int64_t k = 0; k < n; ++k)
      dot += d[k * lines.element_stride] * y[k * lines.element_stride];
    for (int64_t k = 0; k < n; ++k) {
      d[k * lines.element_stride] = (d[k * lines.element_stride] - dot) / divisors[line];
    }
  }
}

// The normalisations of a mix matrix in order: columns, rows, columns, ..., columns. All results
// and divisors are kept, for the backward direction.
template <typename Real>
class Sinkhorn {
 public:
  explicit Sinkhorn(const HyperShape& shape)
      : n_(shape.streams),
        steps_(2 * shape.sinkhorn_rounds - 1),
        epsilon_(static_cast<Real>(shape.epsilon)),
        results_(static_cast<size_t>(steps_ * n_ * n_)),
        divisors_(static_cast<size_t>(steps_ * n_)) {}

  const Real* forward(const Real* softmax) {
    const int64_t size = n_ * n_;
    for (int64_t i = 0; i < size; ++i) results_[static_cast<size_t>(i)] = softmax[i] + epsilon_;
    for (int64_t step = 0; step < steps_; ++step) {
      if (step > 0) std::copy_n(result(step - 1), size, result(step));
      normalize_lines(n_, axis(step), epsilon_, result(step), divisors_.data() + step * n_);
    }
    return result(steps_ - 1);
  }

  // After forward(); `gradient` of the result becomes that of the softmax.
  void backward(Real* gradient) {
    for (int64_t step = steps_ - 1; step >= 0; --step) {
      normalize_lines_backward(n_, axis(step), result(step), divisors_.data() + step * n_,
                               gradient);
    }
  }

 private:
  Lines axis(int64_t step) const { return step % 2 == 0 ? columns_of(n_) : rows_of(n_); }
  Real* result(int64_t step) { return results_.data() + step * n_ * n_; }

  int64_t n_;
  int64_t steps_;
  Real epsilon_;
  std::vector<Real> results_;
  std::vector<Real> divisors_;
};

template <typename Real>
Real dot(const Real* a, const Real* b, int64_t width) {
  Real sum = 0;
#pragma omp simd reduction(+ : sum)
  for (int64_t c = 0; c < width; ++c) sum += a[c] * b[c];
  return sum;
}

// y = scale * x, or y += scale * x.
template <typename Real>
void set_scaled(const Real* x, Real scale, int64_t width, Real* y) {
#pragma omp simd
  for (int64_t c = 0; c < width; ++c) y[c] = scale * x[c];
}

template <typename Real>
void add_scaled(const Real* x, Real scale, int64_t width, Real* y) {
#pragma omp simd
  for (int64_t c = 0; c < width; ++c) y[c] += scale * x[c];
}

// From the gradients of a token's maps those of its scaled and shifted raw numbers.
template <typename Real>
void maps_backward(const HyperShape& shape, const Maps<Real>& maps, const Real* read_gradient,
                   const Real* write_gradient, const Real* mix_gradient, Sinkhorn<Real>& sinkhorn,
                   Real* dz) {
  const int64_t n = shape.streams;
  for (int64_t i = 0; i < n; ++i) {
    const Real read = maps.read_gate[static_cast<size_t>(i)];
    const Real write = maps.write_gate[static_cast<size_t>(i)];
    dz[i] = read_gradient[i] * read * (Real{1} - read);
    dz[n + i] = Real{2} * write_gradient[i] * write * (Real{1} - write);
  }
  sinkhorn.forward(maps.softmax.data());
  Real* dmix = dz + 2 * n;
  std::copy_n(mix_gradient, n * n, dmix);
  sinkhorn.backward(dmix);
  for (int64_t i = 0; i < n; ++i) {
    const Real* p = maps.softmax.data() + i * n;
    const Real pull = dot(dmix + i * n, p, n);
    for (int64_t j = 0; j < n; ++j) dmix[i * n + j] = p[j] * (dmix[i * n + j] - pull);
  }
}

}  // namespace

template <typename Real>
void hyper_read_forward(const HyperShape& shape, const HyperReadInputs<Real>& inputs, Range rows,
                        Real* products, const HyperReadOutputs<Real>& outputs) {
  const int64_t n = shape.streams;
  const int64_t flat = shape.flat_width();
  Sinkhorn<Real> sinkhorn(shape);
  for (int64_t row = rows.begin; row < rows.end; ++row) {
    const Real* x = inputs.streams + row * flat;
    Real* raw = products + row * shape.maps();
    const Real inverse_rms = Real{1} / std::sqrt(dot(x, x, flat) / static_cast<Real>(flat) +
                                                 static_cast<Real>(shape.norm_epsilon));
    for (int64_t m = 0; m < shape.maps(); ++m) raw[m] *= inverse_rms;
    outputs.inverse_rms[row] = inverse_rms;

    const Maps<Real> maps = maps_from_raw(shape, inputs, raw);
    Real* x_in = outputs.x_in + row * shape.width;
    for (int64_t i = 0; i < n; ++i) {
      const auto at = static_cast<size_t>(i);
      outputs.write[row * n + i] = Real{2} * maps.write_gate[at];
      const Real read = maps.read_gate[at] + static_cast<Real>(shape.epsilon);
      const Real* stream = x + i * shape.width;
      if (i == 0) {
        set_scaled(stream, read, shape.width, x_in);
      } else {
        add_scaled(stream, read, shape.width, x_in);
      }
    }
    std::copy_n(sinkhorn.forward(maps.softmax.data()), n * n, outputs.mix + row * n * n);
  }
}

template <typename Real>
void hyper_read_backward(const HyperShape& shape, const HyperReadInputs<Real>& inputs,
                         const Real* raw, const Real* inverse_rms,
                         const HyperReadGradients<Real>& gradients, Range rows,
                         Real* streams_gradient, Real* products_gradient, Real* sums) {
  const int64_t n = shape.streams;
  const int64_t width = shape.width;
  Sinkhorn<Real> sinkhorn(shape);
  std::array<Real, kMaxHyperStreams> read_gradient;
  for (int64_t row = rows.begin; row < rows.end; ++row) {
    const Real* x = inputs.streams + row * shape.flat_width();
    const Real* raw_row = raw + row * shape.maps();
    const Real* dx_in = gradients.x_in + row * width;
    const Maps<Real> maps = maps_from_raw(shape, inputs, raw_row);
    for (int64_t i = 0; i < n; ++i) {
      read_gradient[static_cast<size_t>(i)] = dot(x + i * width, dx_in, width);
    }
    Real* dz = products_gradient + row * shape.maps();
    maps_backward(shape, maps, read_gradient.data(), gradients.write + row * n,
                  gradients.mix + row * n * n, sinkhorn, dz);

    // z = scale raw + base, and raw = products * inverse_rms. Through the norm,
    // <draw, raw> is the sum over flat(X) of dxh * xh.
    Real* scale_sums = sums + shape.maps();
    Real along = 0;
    for (int64_t m = 0; m < shape.maps(); ++m) {
      const int64_t part = m < n ? 0 : m < 2 * n ? 1 : 2;
      sums[m] += dz[m];
      scale_sums[part] += dz[m] * raw_row[m];
      const Real draw = dz[m] * inputs.scale[part];
      along += draw * raw_row[m];
      dz[m] = draw * inverse_rms[row];
    }
    const Real pull =
        along * inverse_rms[row] * inverse_rms[row] / static_cast<Real>(shape.flat_width());
    Real* dx = streams_gradient + row * shape.flat_width();
    for (int64_t i = 0; i < n; ++i) {
      const Real read = maps.read_gate[static_cast<size_t>(i)] + static_cast<Real>(shape.epsilon);
      const Real* stream = x + i * width;
      Real* out = dx + i * width;
#pragma omp simd
      for (int64_t c = 0; c < width; ++c) out[c] = read * dx_in[c] - pull * stream[c];
    }
  }
}

template <typename Real>
void hyper_write_forward(const HyperShape& shape, const HyperWriteInputs<Real>& inputs, Range rows,
                         Real* streams_out) {
  const int64_t n = shape.streams;
  const int64_t width = shape.width;
  for (int64_t row = rows.begin; row < rows.end; ++row) {
    const Real* x = inputs.streams + row * shape.flat_width();
    const Real* mix = inputs.mix + row * n * n;
    for (int64_t j = 0; j < n; ++j) {
      Real* out = streams_out + row * shape.flat_width() + j * width;
      set_scaled(inputs.y + row * width, inputs.write[row * n + j], width, out);
      for (int64_t i = 0; i < n; ++i) add_scaled(x + i * width, mix[i * n + j], width, out);
    }
  }
}

template <typename Real>
void hyper_write_backward(const HyperShape& shape, const HyperWriteInputs<Real>& inputs,
                          const Real* streams_out_gradient, Range rows,
                          const HyperWriteGradients<Real>& gradients) {
  const int64_t n = shape.streams;
  const int64_t width = shape.width;
  for (int64_t row = rows.begin; row < rows.end; ++row) {
    const Real* x = inputs.streams + row * shape.flat_width();
    const Real* y = inputs.y + row * width;
    const Real* dout = streams_out_gradient + row * shape.flat_width();
    const Real* mix = inputs.mix + row * n * n;
    Real* dx = gradients.streams + row * shape.flat_width();
    Real* dy = gradients.y + row * width;
    std::fill_n(dx, shape.flat_width(), Real{0});
    std::fill_n(dy, width, Real{0});
    for (int64_t j = 0; j < n; ++j) {
      const Real* dout_j = dout + j * width;
      gradients.write[row * n + j] = dot(dout_j, y, width);
      add_scaled(dout_j, inputs.write[row * n + j], width, dy);
      for (int64_t i = 0; i < n; ++i) {
        gradients.mix[row * n * n + i * n + j] = dot(x + i * width, dout_j, width);
        add_scaled(dout_j, mix[i * n + j], width, dx + i * width);
      }
    }
  }
}

#define LONGSPAN_INSTANTIATE(Real)                                                                \
  template void hyper_read_forward(const HyperShape&, const HyperReadInputs<Real>&, Range, Real*, \
                                   const HyperReadOutputs<Real>&);                                \
  template void hyper_read_backward(const HyperShape&, const HyperReadInputs<Real>&, const Real*, \
                                    const Real*, const HyperReadGradients<Real>&, Range, Real*,   \
                                    Real*, Real*);                                                \
  template void hyper_write_forward(const HyperShape&, const HyperWriteInputs<Real>&, Range,      \
                                    Real*);                                                       \
  template void hyper_write_backward(const HyperShape&, const HyperWriteInputs<Real>&,            \
                                     const Real*, Range, const HyperWriteGradients<Real>&);
LONGSPAN_INSTANTIATE(float)
LONGSPAN_INSTANTIATE(double)
#undef LONGSPAN_INSTANTIATE

}  // namespace longspan
