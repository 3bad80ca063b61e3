#pragma once
#include "kernels/activation/back.hpp"
#include "kernels/quantize/host_patch.hpp"

/// The gelus of a patch, or their gradients, found by one host thread: as the kernels of kernels/activation find them,
/// to the bit.
namespace tessera::quantizer::host {

/// The gelu's input in fp32: `pre` and the bias of its column, if there is one.
[[gnu::noinline]] inline void add_bias(const std::uint16_t* __restrict pre, const std::uint16_t* __restrict bias, int n,
                                       float* __restrict out) {
  for (int c = 0; c < n; ++c) out[c] = FromBf16::value(pre[c]);
  if (bias == nullptr) return;
  for (int c = 0; c < n; ++c) out[c] += FromBf16::value(bias[c]);
}
[[gnu::noinline]] inline void gelu_row(const float* __restrict x, int n, std::uint16_t* __restrict out) {
  for (int c = 0; c < n; ++c) out[c] = bf16(gelu_of(x[c])).bits;
}
[[gnu::noinline]] inline void gelu_gradient_row(const std::uint16_t* __restrict dy, const float* __restrict x, int n,
                                                std::uint16_t* __restrict out) {
  for (int c = 0; c < n; ++c) out[c] = bf16(FromBf16::value(dy[c]) * activation::gelu_slope(x[c])).bits;
}

/// Row r of the values that are quantized, from the row `stored` of those in memory.
template <class Source>
inline void find_row(const Descriptor& d, const Patch& p, int r, const std::uint16_t* stored, std::uint16_t* out) {
  const std::uint16_t* const bias = d.gelu.bias ? d.gelu.bias + p.column : nullptr;
  float x[edge];
  if constexpr (std::is_same_v<Source, FromGelu>) {
    add_bias(stored, bias, p.columns, x);
    gelu_row(x, p.columns, out);
  } else {
    add_bias(d.gelu.pre + (p.row + r) * d.matrix.columns + p.column, bias, p.columns, x);
    gelu_gradient_row(stored, x, p.columns, out);
  }
}

/// The patch's column sums: of sixteen rows each, then these in order.
inline void sum_columns(const Descriptor& d, const Patch& p, const std::uint16_t (&values)[edge][edge]) {
  constexpr int height = 16;
  float total[edge] = {};
  for (int first = 0; first < p.rows; first += height) {
    float sum[edge] = {};
    for (int r = first; r < p.rows && r < first + height; ++r)
      for (int c = 0; c < p.columns; ++c) sum[c] += FromBf16::value(values[r][c]);
    for (int c = 0; c < p.columns; ++c) total[c] += sum[c];
  }
  std::copy_n(total, p.columns, d.gelu.sums + p.row / edge * d.matrix.columns + p.column);
}

}  // namespace tessera::quantizer::host
