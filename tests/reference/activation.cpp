#include "tests/reference/activation.hpp"

#include <cmath>
#include <numbers>

namespace tessera::reference {
namespace {
const double root = std::sqrt(2 / std::numbers::pi);
double inner(double x) { return root * (x + 0.044715 * x * x * x); }
}  // namespace

/// 1 + tanh(u) is exp(u) / cosh(u), which keeps its digits where u is far below 0.
double gelu(double x) {
  const double u = inner(x);
  return 0.5 * x * (u < 0 ? std::exp(u) / std::cosh(u) : 1 + std::tanh(u));
}
double gelu_slope(double x) {
  const double t = std::tanh(inner(x));
  return 0.5 * (1 + t) + 0.5 * x * (1 - t * t) * root * (1 + 3 * 0.044715 * x * x);
}
double silu(double x) { return x / (1 + std::exp(-x)); }
double silu_slope(double x) {
  const double s = 1 / (1 + std::exp(-x));
  return s + x * s * (1 - s);
}

std::vector<double> swiglu_forward(std::span<const double> gate_up, std::size_t columns) {
  std::vector<double> y(gate_up.size() / 2);
  for (std::size_t i = 0; i < y.size(); ++i) {
    const std::size_t gate = i / columns * 2 * columns + i % columns;
    y[i] = silu(gate_up[gate]) * gate_up[gate + columns];
  }
  return y;
}

std::vector<double> swiglu_backward(std::span<const double> dy, std::span<const double> gate_up, std::size_t columns) {
  std::vector<double> d(gate_up.size());
  for (std::size_t i = 0; i < dy.size(); ++i) {
    const std::size_t gate = i / columns * 2 * columns + i % columns;
    d[gate] = dy[i] * gate_up[gate + columns] * silu_slope(gate_up[gate]);
    d[gate + columns] = dy[i] * silu(gate_up[gate]);
  }
  return d;
}

}  // namespace tessera::reference
