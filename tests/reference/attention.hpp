#pragma once
#include <span>
#include <vector>

#include "kernels/attention/attention.hpp"

namespace tessera::reference {

struct Attention {
  std::vector<double> out, lse;
};
/// Attention one query at a time: every score, the softmax, and the weighted sum of values.
Attention attention_forward(const AttentionShape& shape, std::span<const double> qkv,
                            std::span<const std::int32_t> positions = {});

/// dqkv by the chain rule through the softmax of each query.
std::vector<double> attention_backward(const AttentionShape& shape, std::span<const double> dout,
                                       std::span<const double> qkv, std::span<const std::int32_t> positions = {});

/// [T, D]: cosines, then sines. Scaled by wave length, as transformers' _compute_llama3_parameters does it.
std::vector<double> rotary_table(std::int64_t length, std::int64_t head_dim, double base,
                                 const RopeScaling& scaling = {});
/// Rotates each pair of the first `dims` of each head of Q and K, as a complex number, by its angle times `direction`.
std::vector<double> rotary(const AttentionShape& shape, std::span<const double> qkv, std::int64_t dims, double base,
                           double direction, std::span<const std::int32_t> positions = {});

}  // namespace tessera::reference
