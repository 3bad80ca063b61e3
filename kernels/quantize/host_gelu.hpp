#pragma once
#include "kernels/activation/back.hpp"
#include "kernels/quantize/host_patch.hpp"

/// The gelus of a patch, or their gradients, by one host thread, with the bits of the kernels of kernels/activation.
namespace tessera::quantizer::host {

[[gnu::noinline]] inline void gelu_row(const std::uint16_t* __restrict pre, int n, std::uint16_t* __restrict out) {
  for (int c = 0; c < n; ++c) out[c] = bf16(gelu_of(FromBf16::value(pre[c]))).bits;
}
[[gnu::noinline]] inline void gelu_gradient_row(const std::uint16_t* __restrict dy, const std::uint16_t* __restrict pre,
                                                int n, std::uint16_t* __restrict out) {
  for (int c = 0; c < n; ++c)
    out[c] = bf16(FromBf16::value(dy[c]) * activation::gelu_slope(FromBf16::value(pre[c]))).bits;
}

/// Row r of the values that are quantized, from the row `stored` of those in memory.
template <class Source>
inline void compute_row(const Descriptor& d, const Patch& p, int r, const std::uint16_t* stored, std::uint16_t* out) {
  if constexpr (std::is_same_v<Source, FromGelu>)
    gelu_row(stored, p.columns, out);
  else
    gelu_gradient_row(stored, d.pre + (p.row + r) * d.matrix.columns + p.column, p.columns, out);
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
  std::copy_n(total, p.columns, d.column_sums + p.row / edge * d.matrix.columns + p.column);
}

}  // namespace tessera::quantizer::host
