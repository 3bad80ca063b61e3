#include "tests/reference/attention.hpp"

#include <algorithm>
#include <cmath>
#include <complex>
#include <limits>

namespace tessera::reference {
namespace {

std::size_t size(std::int64_t n) { return static_cast<std::size_t>(n); }

// Positions of one head's vectors in the packed projections.
struct HeadRows {
  const AttentionShape& shape;
  std::int64_t sequence, head;

  std::size_t row(std::int64_t t, std::int64_t first_head) const {
    return size((sequence * shape.length + t) * shape.columns() + first_head * shape.head_dim);
  }
  std::int64_t group() const { return head / (shape.heads / shape.kv_heads); }
  std::size_t query(std::int64_t t) const { return row(t, head); }
  std::size_t key(std::int64_t t) const { return row(t, shape.heads + group()); }
  std::size_t value(std::int64_t t) const { return row(t, shape.heads + shape.kv_heads + group()); }
  std::size_t out(std::int64_t t) const {
    return size(((sequence * shape.length + t) * shape.heads + head) * shape.head_dim);
  }
  std::size_t lse(std::int64_t t) const { return size((sequence * shape.heads + head) * shape.length + t); }
};

double dot(std::span<const double> a, std::size_t i, std::span<const double> b, std::size_t j, std::int64_t n) {
  double sum = 0;
  for (std::size_t d = 0; d < size(n); ++d) sum += a[i + d] * b[j + d];
  return sum;
}

struct Weights {
  std::vector<double> p;  // probabilities of keys 0 .. t
  double lse;
};
// First key that query t sees.
std::int64_t first_key(const HeadRows& at, std::span<const std::int32_t> positions, std::int64_t t) {
  return positions.empty() ? 0 : std::max<std::int64_t>(0, t - positions[size(at.sequence * at.shape.length + t)]);
}
Weights softmax(const HeadRows& at, std::span<const double> qkv, std::span<const std::int32_t> positions,
                std::int64_t t) {
  const double scale = 1 / std::sqrt(static_cast<double>(at.shape.head_dim));
  Weights w{std::vector<double>(size(t + 1)), 0};
  std::fill(w.p.begin(), w.p.end(), -std::numeric_limits<double>::infinity());
  for (std::int64_t u = first_key(at, positions, t); u <= t; ++u)
    w.p[size(u)] = scale * dot(qkv, at.query(t), qkv, at.key(u), at.shape.head_dim);
  const double top = *std::max_element(w.p.begin(), w.p.end());
  double sum = 0;
  for (double& p : w.p) sum += p = std::exp(p - top);
  for (double& p : w.p) p /= sum;
  w.lse = top + std::log(sum);
  return w;
}

template <class F>
void each_query(const AttentionShape& shape, const F& f) {
  for (std::int64_t s = 0; s < shape.sequences; ++s)
    for (std::int64_t h = 0; h < shape.heads; ++h)
      for (std::int64_t t = 0; t < shape.length; ++t) f(HeadRows{shape, s, h}, t);
}

}  // namespace

Attention attention_forward(const AttentionShape& shape, std::span<const double> qkv,
                            std::span<const std::int32_t> positions) {
  const std::int64_t tokens = shape.sequences * shape.length;
  Attention result{std::vector<double>(size(tokens * shape.heads * shape.head_dim)),
                   std::vector<double>(size(tokens * shape.heads))};
  each_query(shape, [&](const HeadRows& at, std::int64_t t) {
    const Weights w = softmax(at, qkv, positions, t);
    for (std::int64_t u = 0; u <= t; ++u)
      for (std::size_t d = 0; d < size(shape.head_dim); ++d)
        result.out[at.out(t) + d] += w.p[size(u)] * qkv[at.value(u) + d];
    result.lse[at.lse(t)] = w.lse;
  });
  return result;
}

std::vector<double> attention_backward(const AttentionShape& shape, std::span<const double> dout,
                                       std::span<const double> qkv, std::span<const std::int32_t> positions) {
  const double scale = 1 / std::sqrt(static_cast<double>(shape.head_dim));
  std::vector<double> dqkv(qkv.size());
  each_query(shape, [&](const HeadRows& at, std::int64_t t) {
    const Weights w = softmax(at, qkv, positions, t);
    std::vector<double> dp(w.p.size());
    double mean = 0;
    for (std::int64_t u = 0; u <= t; ++u) {
      dp[size(u)] = dot(dout, at.out(t), qkv, at.value(u), shape.head_dim);
      mean += w.p[size(u)] * dp[size(u)];
    }
    for (std::int64_t u = 0; u <= t; ++u) {
      const double p = w.p[size(u)], ds = scale * p * (dp[size(u)] - mean);
      for (std::size_t d = 0; d < size(shape.head_dim); ++d) {
        dqkv[at.query(t) + d] += ds * qkv[at.key(u) + d];
        dqkv[at.key(u) + d] += ds * qkv[at.query(t) + d];
        dqkv[at.value(u) + d] += p * dout[at.out(t) + d];
      }
    }
  });
  return dqkv;
}

std::vector<double> rotary_table(std::int64_t length, std::int64_t head_dim, double base, const RopeScaling& scaling) {
  const double longest = scaling.original_seq_len / scaling.low_freq_factor;
  const double shortest = scaling.original_seq_len / scaling.high_freq_factor;
  const auto scaled = [&](double frequency) {
    const double wave = 2 * std::acos(-1.0) / frequency;
    if (scaling.factor == 1 || wave < shortest) return frequency;
    if (wave > longest) return frequency / scaling.factor;
    const double smooth = (scaling.original_seq_len / wave - scaling.low_freq_factor) /
                          (scaling.high_freq_factor - scaling.low_freq_factor);
    return (1 - smooth) * frequency / scaling.factor + smooth * frequency;
  };
  std::vector<double> table(size(length * head_dim));
  for (std::int64_t t = 0; t < length; ++t)
    for (std::int64_t j = 0; j < head_dim / 2; ++j) {
      const double angle =
          static_cast<double>(t) *
          scaled(1 / std::pow(base, 2.0 * static_cast<double>(j) / static_cast<double>(head_dim)));
      table[size(t * head_dim + j)] = std::cos(angle);
      table[size(t * head_dim + head_dim / 2 + j)] = std::sin(angle);
    }
  return table;
}

std::vector<double> rotary(const AttentionShape& shape, std::span<const double> qkv, std::int64_t dims, double base,
                           double direction, std::span<const std::int32_t> positions) {
  std::vector<double> turned(qkv.begin(), qkv.end());
  const std::int64_t half = dims / 2;
  for (std::int64_t token = 0; token < shape.sequences * shape.length; ++token) {
    const std::int64_t place = positions.empty() ? token % shape.length : positions[size(token)];
    for (std::int64_t head = 0; head < shape.heads + shape.kv_heads; ++head)
      for (std::int64_t j = 0; j < half; ++j) {
        const double turn = std::pow(base, -2.0 * static_cast<double>(j) / static_cast<double>(dims));
        const std::size_t at = size(token * shape.columns() + head * shape.head_dim + j), other = at + size(half);
        const auto z = std::complex(qkv[at], qkv[other]) *
                       std::polar(1.0, direction * static_cast<double>(place) * turn);
        turned[at] = z.real();
        turned[other] = z.imag();
      }
  }
  return turned;
}

}  // namespace tessera::reference
