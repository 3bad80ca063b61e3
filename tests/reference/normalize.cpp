#include "tests/reference/normalize.hpp"

#include <cmath>

namespace tessera::reference {

Normed norm_forward(Norm kind, std::span<const double> x, std::span<const double> branch,
                    std::span<const double> weight, std::span<const double> bias, double eps) {
  const std::size_t n = weight.size(), rows = x.size() / n;
  Normed out{{x.begin(), x.end()}, std::vector<double>(x.size()), std::vector<double>(rows), std::vector<double>(rows)};
  for (std::size_t i = 0; i < branch.size(); ++i) out.residual[i] += branch[i];
  for (std::size_t r = 0; r < rows; ++r) {
    const double* v = out.residual.data() + r * n;
    double mean = 0, variance = 0;
    if (kind == Norm::layer)
      for (std::size_t j = 0; j < n; ++j) mean += v[j] / static_cast<double>(n);
    for (std::size_t j = 0; j < n; ++j) variance += (v[j] - mean) * (v[j] - mean) / static_cast<double>(n);
    out.mean[r] = mean;
    out.rstd[r] = 1 / std::sqrt(variance + eps);
    for (std::size_t j = 0; j < n; ++j)
      out.y[r * n + j] = (v[j] - mean) * out.rstd[r] * weight[j] + (bias.empty() ? 0 : bias[j]);
  }
  return out;
}

NormGradient norm_backward(Norm kind, std::span<const double> dy, std::span<const double> x,
                           std::span<const double> weight, double eps) {
  const std::size_t n = weight.size(), rows = x.size() / n;
  const auto count = static_cast<double>(n);
  const Normed normed = norm_forward(kind, x, {}, weight, {}, eps);
  NormGradient out{std::vector<double>(x.size()), std::vector<double>(n), std::vector<double>(n)};
  for (std::size_t r = 0; r < rows; ++r) {
    const double *v = x.data() + r * n, *g = dy.data() + r * n, mean = normed.mean[r], rstd = normed.rstd[r];
    double d_variance = 0, d_mean = 0;
    for (std::size_t j = 0; j < n; ++j) {
      out.dweight[j] += g[j] * (v[j] - mean) * rstd;
      out.dbias[j] += g[j];
      d_variance += g[j] * weight[j] * (v[j] - mean) * -0.5 * rstd * rstd * rstd;
      d_mean -= g[j] * weight[j] * rstd;
    }
    for (std::size_t j = 0; j < n; ++j) {
      out.dx[r * n + j] = g[j] * weight[j] * rstd + d_variance * 2 * (v[j] - mean) / count;
      if (kind == Norm::layer) out.dx[r * n + j] += d_mean / count;
    }
  }
  return out;
}

}  // namespace tessera::reference
