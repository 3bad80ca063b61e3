#include "tests/reference/head_norm.hpp"

#include <algorithm>

#include "tests/reference/normalize.hpp"

namespace tessera::reference {
namespace {

/// Calls f(begin, weight or none) for every head of every token; `begin` is the head's first element.
template <class F>
void each_head(const AttentionShape& shape, const F& f) {
  const auto all = shape.heads + 2 * shape.kv_heads, normed = shape.heads + shape.kv_heads;
  for (std::int64_t i = 0; i < shape.sequences * shape.length * all; ++i)
    f(static_cast<std::size_t>(i * shape.head_dim), i % all < shape.heads ? 0 : i % all < normed ? 1 : 2);
}

}  // namespace

std::vector<double> head_norm_forward(const AttentionShape& shape, std::span<const double> qkv,
                                      std::span<const double> q, std::span<const double> k, double eps) {
  std::vector<double> y(qkv.begin(), qkv.end());
  const auto n = static_cast<std::size_t>(shape.head_dim);
  each_head(shape, [&](std::size_t begin, int kind) {
    if (kind == 2) return;
    const Normed head = norm_forward(Norm::rms, qkv.subspan(begin, n), {}, kind == 0 ? q : k, {}, eps);
    std::ranges::copy(head.y, y.begin() + static_cast<std::ptrdiff_t>(begin));
  });
  return y;
}

HeadNormGradient head_norm_backward(const AttentionShape& shape, std::span<const double> dy,
                                    std::span<const double> qkv, std::span<const double> q, std::span<const double> k,
                                    double eps) {
  const auto n = static_cast<std::size_t>(shape.head_dim);
  HeadNormGradient out{{dy.begin(), dy.end()}, std::vector<double>(n), std::vector<double>(n)};
  each_head(shape, [&](std::size_t begin, int kind) {
    if (kind == 2) return;
    const NormGradient head =
        norm_backward(Norm::rms, dy.subspan(begin, n), qkv.subspan(begin, n), kind == 0 ? q : k, eps);
    std::ranges::copy(head.dx, out.dqkv.begin() + static_cast<std::ptrdiff_t>(begin));
    std::vector<double>& weight = kind == 0 ? out.dq : out.dk;
    for (std::size_t j = 0; j < n; ++j) weight[j] += head.dweight[j];
  });
  return out;
}

}  // namespace tessera::reference
