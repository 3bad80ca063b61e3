#pragma once
#include "kernels/activation/back.hpp"
#include "kernels/quantize/host_patch.hpp"

/// The activations of a patch, or their gradients, by one host thread, with the bits of the kernels of
/// kernels/activation.
namespace tessera::quantizer::host {

[[gnu::noinline]] inline void gelu_row(const std::uint16_t* __restrict pre, int n, std::uint16_t* __restrict out) {
  for (int c = 0; c < n; ++c) out[c] = bf16(gelu_of(FromBf16::value(pre[c]))).bits;
}
[[gnu::noinline]] inline void gelu_gradient_row(const std::uint16_t* __restrict dy, const std::uint16_t* __restrict pre,
                                                int n, std::uint16_t* __restrict out) {
  for (int c = 0; c < n; ++c)
    out[c] = bf16(FromBf16::value(dy[c]) * activation::gelu_slope(FromBf16::value(pre[c]))).bits;
}

[[gnu::noinline]] inline void swiglu_row(const std::uint16_t* __restrict gate, const std::uint16_t* __restrict up,
                                         int n, std::uint16_t* __restrict out) {
  for (int c = 0; c < n; ++c) {
    const float g = FromBf16::value(gate[c]);
    out[c] = bf16(activation::swiglu(activation::sigmoid(g), g, FromBf16::value(up[c]))).bits;
  }
}
template <bool of_up>
[[gnu::noinline]] void swiglu_gradient_row(const std::uint16_t* __restrict dy, const std::uint16_t* __restrict gate,
                                           const std::uint16_t* __restrict up, int n, std::uint16_t* __restrict out) {
  for (int c = 0; c < n; ++c) {
    const float g = FromBf16::value(gate[c]);
    float dgate, dup;
    activation::swiglu_slopes(activation::sigmoid(g), g, FromBf16::value(up[c]), FromBf16::value(dy[c]), dgate, dup);
    out[c] = bf16(of_up ? dup : dgate).bits;
  }
}
template <class Source>
inline void compute_swiglu_row(const Descriptor& d, const Patch& p, int r, std::uint16_t* out) {
  const SwigluPlaces at = swiglu_places<Source>(d, p);
  const std::uint16_t *const gate = at.gate + r * at.pitch, *const up = at.up + r * at.pitch;
  if constexpr (std::is_same_v<Source, FromSwiglu>) return swiglu_row(gate, up, p.columns, out);
  const std::uint16_t* const dy = at.dy + r * at.dy_pitch;
  at.of_up ? swiglu_gradient_row<true>(dy, gate, up, p.columns, out)
           : swiglu_gradient_row<false>(dy, gate, up, p.columns, out);
}

/// Row r of the values that are quantized, from the row `stored` of those in memory.
template <class Source>
inline void compute_row(const Descriptor& d, const Patch& p, int r, const std::uint16_t* stored, std::uint16_t* out) {
  if constexpr (OfSwiglu<Source>)
    compute_swiglu_row<Source>(d, p, r, out);
  else if constexpr (std::is_same_v<Source, FromGelu>)
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
