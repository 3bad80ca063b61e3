#pragma once
#include <span>
#include <vector>

#include "kernels/attention/attention.hpp"

namespace tessera::reference {

/// Normalises each head of Q and K by the plain rms norm of D elements; with weights of all heads, all of Q and all of
/// K by one each.
std::vector<double> head_norm_forward(const AttentionShape& shape, std::span<const double> qkv,
                                      std::span<const double> q, std::span<const double> k, double eps);

struct HeadNormGradient {
  std::vector<double> dqkv, dq, dk;
};
/// The gradients by the chain rule of the plain rms norm, head by head.
HeadNormGradient head_norm_backward(const AttentionShape& shape, std::span<const double> dy,
                                    std::span<const double> qkv, std::span<const double> q, std::span<const double> k,
                                    double eps);

}  // namespace tessera::reference
