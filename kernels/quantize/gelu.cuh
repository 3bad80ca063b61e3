#pragma once
#include "kernels/activation/by_instructions.cuh"
#include "kernels/activation/back.hpp"
#include "kernels/quantize/patch.cuh"

/// Device code: the activations of a patch, or their gradients, computed in registers, with the bits of the kernels of
/// kernels/activation in bf16.
namespace tessera::quantizer::device {

/// Replaces row r by its gelu.
__device__ inline void to_gelus(Pairs& x, int r) {
#pragma unroll
  for (int i = 0; i < run / 2; ++i)
    x.pair[r][i] =
        rounded_pair(activation::fast_gelu(low_of(x.pair[r][i])), activation::fast_gelu(high_of(x.pair[r][i])));
}

/// Replaces row r of dy by dy gelu'(pre).
__device__ inline void to_gradients(Pairs& dy, const Pairs& pre, int r) {
#pragma unroll
  for (int i = 0; i < run / 2; ++i)
    dy.pair[r][i] = rounded_pair(low_of(dy.pair[r][i]) * activation::fast_gelu_slope(low_of(pre.pair[r][i])),
                                 high_of(dy.pair[r][i]) * activation::fast_gelu_slope(high_of(pre.pair[r][i])));
}

/// The patch's column sums: a thread's sixteen rows, then these in order. `columns`: shared memory, a row for sixteen.
__device__ inline void store_sums(const Pairs& x, const Descriptor& d, const Patch& p,
                                  std::uint32_t (&columns)[threads / 16][patch_edge]) {
  const Seat seat;
#pragma unroll
  for (int c = 0; c < run; ++c) {
    float sum = 0;
#pragma unroll
    for (int r = 0; r < height; ++r) sum += x.value(r, c);
    columns[seat.row / height][seat.column + c] = __float_as_uint(sum);
  }
  __syncthreads();
  const int column = static_cast<int>(threadIdx.x);
  float total = 0;
#pragma unroll
  for (int band = 0; band < threads / 16; ++band) total += __uint_as_float(columns[band][column]);
  if (column < p.columns) d.column_sums[p.row / patch_edge * d.matrix.columns + p.column + column] = total;
  __syncthreads();
}

/// Loads a patch and computes its gelus, or their gradients. Elements outside the extent stay 0. The barrier,
/// and a branch that is always taken, keep the compiler from mixing loads, gelus and codes: it would delay loads and
/// spill a hundred registers.
template <class Source, class Extent>
__device__ Pairs load_gelus(const Descriptor& d, const Patch& p, const Extent& extent) {
  constexpr bool gradient = std::is_same_v<Source, FromGeluGradient>;
  constexpr int part = 8;  // rows of the gelu's input that a thread holds beside the gradient's
  const Seat seat;
  const std::int64_t width = d.matrix.columns;
  Pairs pre{}, x = load<Source>(SourcePatch<Source>(d, p).origin, width, seat, extent);
  const auto load_part = [&](int first) {
    if constexpr (Extent::all)
      if (!extent.holds(seat)) return;
    const std::uint16_t* const from = d.pre + p.row * width + p.column;
#pragma unroll
    for (int r = 0; r < part; ++r) load_row<Source>(from, width, seat, extent, first + r, pre);
  };
  if constexpr (gradient) load_part(0);
  __syncthreads();
  if (width > 0) {
#pragma unroll
    for (int r = 0; r < height; ++r) {
      if constexpr (!gradient) {
        to_gelus(x, r);
      } else {
        if (r > 0 && r % part == 0) load_part(r);
        to_gradients(x, pre, r);
      }
    }
  }
  return x;
}

/// Replaces row r of gates by their swiglu.
__device__ inline void to_swiglus(Pairs& gate, const Pairs& up, int r) {
  const auto swiglu = [](float g, float u) { return activation::swiglu(activation::fast_sigmoid(g), g, u); };
#pragma unroll
  for (int i = 0; i < run / 2; ++i)
    gate.pair[r][i] = rounded_pair(swiglu(low_of(gate.pair[r][i]), low_of(up.pair[r][i])),
                                   swiglu(high_of(gate.pair[r][i]), high_of(up.pair[r][i])));
}
/// Replaces row r of dy by the gradient of gate, or of up.
__device__ inline void to_swiglu_gradients(Pairs& dy, const Pairs& gate, const Pairs& up, bool of_up, int r) {
  const auto slope = [=](float d, float g, float u) {
    float dgate, dup;
    activation::swiglu_slopes(activation::fast_sigmoid(g), g, u, d, dgate, dup);
    return of_up ? dup : dgate;
  };
#pragma unroll
  for (int i = 0; i < run / 2; ++i)
    dy.pair[r][i] =
        rounded_pair(slope(low_of(dy.pair[r][i]), low_of(gate.pair[r][i]), low_of(up.pair[r][i])),
                     slope(high_of(dy.pair[r][i]), high_of(gate.pair[r][i]), high_of(up.pair[r][i])));
}

/// load_gelus() of swiglus: a few rows of the other sources at a time.
template <class Source, class Extent>
__device__ Pairs load_swiglus(const Descriptor& d, const Patch& p, const Extent& extent) {
  constexpr bool gradient = std::is_same_v<Source, FromSwigluGradient>;
  constexpr int part = 4;
  const Seat seat;
  const SwigluPlaces at = swiglu_places<Source>(d, p);
  Pairs gate{}, up{};
  Pairs x = load<Source>(gradient ? at.dy : at.gate, gradient ? at.dy_pitch : at.pitch, seat, extent);
  const auto load_part = [&](int first) {
    if constexpr (Extent::all)
      if (!extent.holds(seat)) return;
#pragma unroll
    for (int r = 0; r < part; ++r) {
      if (gradient) load_row<Source>(at.gate, at.pitch, seat, extent, first + r, gate);
      if (!gradient || !at.of_up) load_row<Source>(at.up, at.pitch, seat, extent, first + r, up);
    }
  };
  load_part(0);
  __syncthreads();
  if (at.pitch > 0) {
#pragma unroll
    for (int r = 0; r < height; ++r) {
      if (r > 0 && r % part == 0) load_part(r);
      if constexpr (gradient)
        to_swiglu_gradients(x, gate, up, at.of_up, r);
      else
        to_swiglus(x, up, r);
    }
  }
  return x;
}

}  // namespace tessera::quantizer::device
