#pragma once
#include <span>
#include <vector>

#include "kernels/normalize/normalize.hpp"

namespace tessera::reference {

struct Normed {
  std::vector<double> residual, y, mean, rstd;  // mean is 0 for rms
};
/// y = norm(x + branch) w + b; branch and bias may be empty. Columns are those of the weight.
Normed norm_forward(Norm kind, std::span<const double> x, std::span<const double> branch,
                    std::span<const double> weight, std::span<const double> bias, double eps = norm_eps);

struct NormGradient {
  std::vector<double> dx, dweight, dbias;
};
/// The gradients of sum dy (norm(x) w + b), from x alone: through the mean, then through the variance.
NormGradient norm_backward(Norm kind, std::span<const double> dy, std::span<const double> x,
                           std::span<const double> weight, double eps = norm_eps);

}  // namespace tessera::reference
