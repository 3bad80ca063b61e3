#pragma once
#include <span>
#include <vector>

#include "kernels/attention/attention.hpp"

namespace tessera::reference {

/// Queries and keys normalised head by head, by the plain rms norm of rows of D.
std::vector<double> head_norm_forward(const AttentionShape& shape, std::span<const double> qkv,
                                      std::span<const double> q, std::span<const double> k, double eps);

struct HeadNormGradient {
  std::vector<double> dqkv, dq, dk;
};
/// Each head by the chain rule of the plain rms norm.
HeadNormGradient head_norm_backward(const AttentionShape& shape, std::span<const double> dy,
                                    std::span<const double> qkv, std::span<const double> q, std::span<const double> k,
                                    double eps);

}  // namespace tessera::reference
