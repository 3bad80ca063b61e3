#pragma once
#include "kernels/activation/by_instructions.cuh"
#include "kernels/quantize/patch.cuh"

/// Device code: the gelus of a patch, or their gradients, found in registers: as the kernels of kernels/activation find
/// them in bf16, to the bit.
namespace tessera::quantizer::device {

/// The bias of the thread's eight columns, those that the matrix has.
__device__ inline void load_bias(const Descriptor& d, const Patch& p, int column, float (&bias)[run]) {
  const std::uint16_t* const from = d.gelu.bias + p.column + column;
  if (column + run <= p.columns && aligned(from, 16)) {
    const uint4 v = load_in_order(reinterpret_cast<const uint4*>(from));
    const std::uint32_t pairs[run / 2] = {v.x, v.y, v.z, v.w};
#pragma unroll
    for (int i = 0; i < run / 2; ++i) bias[2 * i] = low_of(pairs[i]), bias[2 * i + 1] = high_of(pairs[i]);
  } else {
#pragma unroll
    for (int c = 0; c < run; ++c) bias[c] = column + c < p.columns ? FromBf16::value(from[c]) : 0.0f;
  }
}

/// Elements outside the extent become 0 again, whatever the bias made of them.
template <class Extent>
__device__ void clear_outside(Pairs& x, const Seat& seat, const Extent& extent) {
  if constexpr (!Extent::all) {
#pragma unroll
    for (int r = 0; r < height; ++r) {
      const int first = extent.first(seat.row + r) - seat.column, end = extent.end(seat.row + r) - seat.column;
#pragma unroll
      for (int i = 0; i < run / 2; ++i) {
        if (2 * i < first || 2 * i >= end) x.pair[r][i] &= 0xFFFF0000u;
        if (2 * i + 1 < first || 2 * i + 1 >= end) x.pair[r][i] &= 0xFFFFu;
      }
    }
  }
}

/// gelu(x + bias) of row r.
__device__ inline void to_gelus(Pairs& x, int r, const float (&bias)[run]) {
#pragma unroll
  for (int i = 0; i < run / 2; ++i) {
    const float low = low_of(x.pair[r][i]) + bias[2 * i], high = high_of(x.pair[r][i]) + bias[2 * i + 1];
    x.pair[r][i] = rounded_pair(activation::fast_gelu(low), activation::fast_gelu(high));
  }
}

/// dy gelu'(pre + bias) of row r, in the place of dy.
__device__ inline void to_gradients(Pairs& dy, const Pairs& pre, int r, const float (&bias)[run]) {
#pragma unroll
  for (int i = 0; i < run / 2; ++i) {
    const float low = low_of(pre.pair[r][i]) + bias[2 * i], high = high_of(pre.pair[r][i]) + bias[2 * i + 1];
    dy.pair[r][i] = rounded_pair(low_of(dy.pair[r][i]) * activation::fast_gelu_slope(low),
                                 high_of(dy.pair[r][i]) * activation::fast_gelu_slope(high));
  }
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
  if (column < p.columns) d.gelu.sums[p.row / patch_edge * d.matrix.columns + p.column + column] = total;
  __syncthreads();
}

/// The values of a patch that are quantized; stores their sums where these are wanted. Two things keep the compiler
/// from mixing loads, gelus and codes, and so from running out of registers: a barrier behind the loads, so that all
/// are under way before the bias, on which all else depends, is read; and the branch for a missing bias.
template <class Source, class Extent>
__device__ Pairs found(const Descriptor& d, const Patch& p, const Extent& extent,
                       std::uint32_t (&columns)[threads / 16][patch_edge]) {
  constexpr bool gradient = std::is_same_v<Source, FromGeluGradient>;
  constexpr int part = 8;  // rows of the gelu's input that a thread holds beside the gradient's
  const Seat seat;
  const std::int64_t width = d.matrix.columns;
  Pairs pre{}, x = load<Source>(SourcePatch<Source>(d, p).origin, width, seat, extent);
  const auto load_part = [&](int first) {
    const std::uint16_t* const from = d.gelu.pre + p.row * width + p.column;
#pragma unroll
    for (int r = 0; r < part; ++r) load_row<Source>(from, width, seat, extent, first + r, pre);
  };
  if constexpr (gradient) load_part(0);
  __syncthreads();
  const auto find = [&](const float(&bias)[run]) {
#pragma unroll
    for (int r = 0; r < height; ++r) {
      if constexpr (!gradient) {
        to_gelus(x, r, bias);
      } else {
        if (r > 0 && r % part == 0) load_part(r);
        to_gradients(x, pre, r, bias);
      }
    }
  };
  if (d.gelu.bias != nullptr) {
    float bias[run];
    load_bias(d, p, seat.column, bias);
    find(bias);
  } else {
    find({-0.0f, -0.0f, -0.0f, -0.0f, -0.0f, -0.0f, -0.0f, -0.0f});  // changes no number that it is added to
  }
  clear_outside(x, seat, extent);
  if constexpr (gradient)
    if (d.gelu.sums != nullptr) store_sums(x, d, p, columns);
  return x;
}

}  // namespace tessera::quantizer::device
