#pragma once
#include <span>
#include <vector>

#include "kernels/attention/attention.hpp"

namespace tessera::reference {

struct Attention {
  std::vector<double> out, lse;
};
/// Every score, its softmax and the weighted sum of values, one query at a time.
Attention attention_forward(const AttentionShape& shape, std::span<const double> qkv);

/// dqkv by the chain rule through the softmax of each query.
std::vector<double> attention_backward(const AttentionShape& shape, std::span<const double> dout,
                                       std::span<const double> qkv);

/// [T, D]: cosines, then sines. Scaled as transformers' _compute_llama3_parameters does it, by wave lengths.
std::vector<double> rotary_table(std::int64_t length, std::int64_t head_dim, double base,
                                 const RopeScaling& scaling = {});
/// Each pair of Q and K as a complex number, turned by its angle times `direction`.
std::vector<double> rotary(const AttentionShape& shape, std::span<const double> qkv, double base, double direction);

}  // namespace tessera::reference
