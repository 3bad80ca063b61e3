#pragma once
#include <cstdint>
#include <span>
#include <vector>

namespace tessera::reference {

/// Sizes of a linear layer, y [rows, out] = x [rows, in] w^T + bias, w [out, in]. Everything is computed in double.
struct Linear {
  std::int64_t rows = 0, out = 0, in = 0;
};

/// `bias` may be empty.
std::vector<double> linear_forward(Linear size, std::span<const double> x, std::span<const double> w,
                                   std::span<const double> bias);
/// dx = dy w.
std::vector<double> linear_input_gradient(Linear size, std::span<const double> dy, std::span<const double> w);
/// dw = dy^T x.
std::vector<double> linear_weight_gradient(Linear size, std::span<const double> dy, std::span<const double> x);
/// Column sums of dy.
std::vector<double> bias_gradient(Linear size, std::span<const double> dy);

}  // namespace tessera::reference
