#include "tests/reference/head_norm.hpp"

#include <algorithm>

#include "tests/reference/normalize.hpp"

namespace tessera::reference {
namespace {

/// Calls f(begin, size, weight: 0 q, 1 k) for every piece of a token's row that has a norm of its own. These are heads,
/// if the weights are a head's, else all queries and all keys.
template <class F>
void each_piece(const AttentionShape& shape, std::size_t weights, const F& f) {
  const auto dim = static_cast<std::size_t>(shape.head_dim), columns = static_cast<std::size_t>(shape.columns());
  const auto q = dim * static_cast<std::size_t>(shape.heads), k = dim * static_cast<std::size_t>(shape.kv_heads);
  const bool by_head = weights == dim;
  for (std::size_t row = 0; row < static_cast<std::size_t>(shape.sequences * shape.length); ++row)
    for (std::size_t at = 0; at < q + k;) {
      const std::size_t size = by_head ? dim : at < q ? q : k;
      f(row * columns + at, size, at < q ? 0 : 1);
      at += size;
    }
}

}  // namespace

std::vector<double> head_norm_forward(const AttentionShape& shape, std::span<const double> qkv,
                                      std::span<const double> q, std::span<const double> k, double eps) {
  std::vector<double> y(qkv.begin(), qkv.end());
  each_piece(shape, q.size(), [&](std::size_t begin, std::size_t n, int kind) {
    const Normed head = norm_forward(Norm::rms, qkv.subspan(begin, n), {}, kind == 0 ? q : k, {}, eps);
    std::ranges::copy(head.y, y.begin() + static_cast<std::ptrdiff_t>(begin));
  });
  return y;
}

HeadNormGradient head_norm_backward(const AttentionShape& shape, std::span<const double> dy,
                                    std::span<const double> qkv, std::span<const double> q, std::span<const double> k,
                                    double eps) {
  HeadNormGradient out{{dy.begin(), dy.end()}, std::vector<double>(q.size()), std::vector<double>(k.size())};
  each_piece(shape, q.size(), [&](std::size_t begin, std::size_t n, int kind) {
    const NormGradient head =
        norm_backward(Norm::rms, dy.subspan(begin, n), qkv.subspan(begin, n), kind == 0 ? q : k, eps);
    std::ranges::copy(head.dx, out.dqkv.begin() + static_cast<std::ptrdiff_t>(begin));
    std::vector<double>& weight = kind == 0 ? out.dq : out.dk;
    for (std::size_t j = 0; j < n; ++j) weight[j] += head.dweight[j];
  });
  return out;
}

}  // namespace tessera::reference
