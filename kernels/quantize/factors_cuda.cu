#include <variant>

#include "kernels/quantize/back.hpp"
#include "kernels/quantize/choice.cuh"
#include "kernels/quantize/columns.cuh"
#include "kernels/quantize/draws.cuh"
#include "kernels/quantize/scales.cuh"

/// Fake quantization (quantize-dequantize): bf16 values to the bf16 values that their codes stand for. A kernel of its
/// own beside copies_kernel, since it stores values where that stores codes and scales.
namespace tessera::quantizer {
namespace device {
namespace {

template <class Element>
__device__ void round_column(Element, float (&v)[height]) {
#pragma unroll
  for (int first = 0; first < height; first += run) {
    float x[run], y[run];
#pragma unroll
    for (int r = 0; r < run; ++r) x[r] = v[first + r];
    round_run(Element(), x, y);
#pragma unroll
    for (int r = 0; r < run; ++r) v[first + r] = y[r];
  }
}

/// Products of two bf16 numbers each.
__device__ inline std::uint32_t multiplied(std::uint32_t a, std::uint32_t b) {
  std::uint32_t products;
  asm("mul.rn.bf16x2 %0, %1, %2;" : "=r"(products) : "r"(a), "r"(b));
  return products;
}
__device__ inline std::uint32_t steps_at_random(float low, float high) {
  return rounded_pair(low * 0x1p6f, high * 0x1p6f);
}
/// Two products rounded to E2M1 up or down at random, as encode_run_at_random() does, times their steps, all of it
/// exact; `steps` are those of steps_at_random().
__device__ inline std::uint32_t factors_at_random(float low, float high, std::uint32_t draws, std::uint32_t steps) {
  // As bf16 numbers codes are values times 2^-126.
  const std::uint32_t magnitudes = magnitudes_at_random(low, high, draws) >> 3 & 0x01C001C0u;
  const std::uint32_t signs = __byte_perm(__float_as_uint(low), __float_as_uint(high), 0x7632) & 0x80008000u;
  constexpr std::uint32_t up = 0x7B807B80u;  // 2^120
  return multiplied(multiplied(magnitudes | signs, up), steps);
}

/// Factors times two lines' powers of two, which bf16 holds.
template <Format F>
__device__ std::uint32_t in_lines(std::uint32_t factors, const formats::TensorScale& low,
                                  const formats::TensorScale& high) {
  if constexpr (!formats::by_lines<F>) return factors;
  return multiplied(factors, rounded_pair(low.inverse, high.inverse));
}

/// A block's scale as decoding applies it; by lines without the line's.
template <Format F>
__device__ float step_of(typename F::Scale scale) {
  if constexpr (follows_scale<F>) {
    static_assert(std::is_same_v<typename F::ScaleElement, formats::E4M3>);
    float step, none;
    widen(e4m3_values(scale), step, none);
    return step;
  } else {
    return F::factor_step(scale, 0.0f);
  }
}

template <Format F, class M>
struct Shared {
  typename Encodings<F>::Memory encodings[2];
  std::conditional_t<rounds_at_random<F, M>, Draws::Memory, std::monostate> draws;
  ColumnTops<F> columns;
};

/// The address of the thread's first factor of a copy.
__device__ inline std::uint16_t* factors_of(const Descriptor& d, const Patch& p, Side side, const Seat& seat) {
  return reinterpret_cast<std::uint16_t*>(d.side[static_cast<int>(side)].data) + origin_of(d, p) +
         seat.row * d.matrix.columns + seat.column;
}

/// Stores row r of the thread's factors.
template <class Extent>
__device__ void store_factors(std::uint16_t* out, const std::uint32_t (&pair)[run / 2], const Seat& seat, int r,
                              const Extent& extent) {
  const auto all = [&] { __stwb(reinterpret_cast<uint4*>(out), make_uint4(pair[0], pair[1], pair[2], pair[3])); };
  if constexpr (Extent::all) {
    if (extent.holds(seat)) all();
  } else {
    const int first = extent.first(seat.row + r) - seat.column, end = extent.end(seat.row + r) - seat.column;
    if (extent.vectors && first <= 0 && end >= run) return all();
#pragma unroll
    for (int c = 0; c < run; ++c)
      if (c >= first && c < end) out[c] = static_cast<std::uint16_t>(pair[c / 2] >> (c % 2 * 16));
  }
}

template <Format F, class M, class Extent>
__device__ void factor_rows(const Pairs& x, const Descriptor& d, const Patch& p, const Extent& extent,
                            Shared<F, M>& shared, const formats::TensorScale& tensor) {
  constexpr bool at_random = rounds_at_random<F, M>;
  const Seat seat;
  const Encodings<F> encoding_of(tensor, shared.encodings[0]);
  if constexpr (at_random) Draws(shared.draws).fill(d, p, Side::rowwise, seat);
  std::uint16_t* const out = factors_of(d, p, Side::rowwise, seat);
#pragma unroll
  for (int r = 0; r < height; r += 2) {
    std::uint32_t top[2];
    largest_of_rows<F::block.columns / run>(x, r, top);
#pragma unroll
    for (int k = 0; k < 2; ++k) {
      const formats::TensorScale line = line_scale<F>(Side::rowwise, d, p, seat.row + r + k, 0, tensor);
      const auto encoding = encoding_of_row(encoding_of, top[k], line, x, r + k);
      const float step = step_of<F>(encoding.scale);
      float v[run];
#pragma unroll
      for (int c = 0; c < run; ++c) v[c] = x.value(r + k, c) * encoding.multiplier;
      std::uint32_t pair[run / 2];
      if constexpr (at_random) {
        const std::uint32_t steps = steps_at_random(step, step);
#pragma unroll
        for (int i = 0; i < run / 2; ++i) {
          const std::uint32_t four = Draws(shared.draws).four(seat.row + r + k, seat.column + i / 2 * 4);
          pair[i] = in_lines<F>(factors_at_random(v[2 * i], v[2 * i + 1], Draws::neighbours(four, 2 * i), steps), line,
                                line);
        }
      } else {
        float y[run];
        round_run(typename F::Element(), v, y);
#pragma unroll
        for (int i = 0; i < run / 2; ++i)
          pair[i] = in_lines<F>(rounded_pair(y[2 * i] * step, y[2 * i + 1] * step), line, line);
      }
      store_factors(out + (r + k) * d.matrix.columns, pair, seat, r + k, extent);
    }
  }
}

/// Column c of the thread's values, times its block's multiplier; returns the block's step.
template <Format F, class M>
__device__ float scaled_column(const Pairs& x, int c, std::uint32_t top, const Encodings<F>& encoding_of,
                               const formats::TensorScale& line, float (&v)[height]) {
  column_of<rotates<F, M>>(x, c, v, top);
  const auto encoding = encoding_of_column(encoding_of, top, line, v);
#pragma unroll
  for (float& y : v) y *= encoding.multiplier;
  return step_of<F>(encoding.scale);
}

/// Two columns at a time; their factors take the place of the values.
template <Format F, class M, class Extent>
__device__ void factor_columns(Pairs& x, const Descriptor& d, const Patch& p, const Extent& extent,
                               Shared<F, M>& shared, const formats::TensorScale& tensor) {
  constexpr bool at_random = rounds_at_random<F, M>;
  const Seat seat;
  const Encodings<F> encoding_of(tensor, shared.encodings[1]);
  if constexpr (at_random) Draws(shared.draws).fill(d, p, Side::columnwise, seat);
  std::uint32_t top[run] = {};
  if constexpr (!rotates<F, M>) largest_of_column_blocks(x, seat, top, shared.columns);
#pragma unroll
  for (int i = 0; i < run / 2; ++i) {
    float low[height], high[height];
    const auto line = [&](int c) { return line_scale<F>(Side::columnwise, d, p, 0, seat.column + c, tensor); };
    const formats::TensorScale of_low = line(2 * i), of_high = line(2 * i + 1);
    const float step = scaled_column<F, M>(x, 2 * i, top[2 * i], encoding_of, of_low, low),
                step_of_high = scaled_column<F, M>(x, 2 * i + 1, top[2 * i + 1], encoding_of, of_high, high);
    if constexpr (at_random) {
      const std::uint32_t steps = steps_at_random(step, step_of_high);
#pragma unroll
      for (int r = 0; r < height; ++r) {
        const std::uint32_t four = Draws(shared.draws).four(seat.row + r, seat.column + i / 2 * 4);
        x.pair[r][i] =
            in_lines<F>(factors_at_random(low[r], high[r], Draws::neighbours(four, 2 * i), steps), of_low, of_high);
      }
    } else {
      round_column(typename F::Element(), low);
      round_column(typename F::Element(), high);
#pragma unroll
      for (int r = 0; r < height; ++r)
        x.pair[r][i] = in_lines<F>(rounded_pair(low[r] * step, high[r] * step_of_high), of_low, of_high);
    }
  }
  std::uint16_t* const out = factors_of(d, p, Side::columnwise, seat);
#pragma unroll
  for (int r = 0; r < height; ++r) store_factors(out + r * d.matrix.columns, x.pair[r], seat, r, extent);
}

/// With a tensor's scale alone, both copies are the same values.
template <Format F, class Extent>
__device__ void factor_alike(const Pairs& x, const Descriptor& d, const Patch& p, const Extent& extent, float amax) {
  const Seat seat;
  const float multiplier = F::tensor_scale(amax).encode, step = F::tensor_step(amax);
#pragma unroll
  for (int r = 0; r < height; ++r) {
    float v[run], y[run];
    std::uint32_t pair[run / 2];
#pragma unroll
    for (int c = 0; c < run; ++c) v[c] = x.value(r, c) * multiplier;
    round_run(typename F::Element(), v, y);
#pragma unroll
    for (int i = 0; i < run / 2; ++i) pair[i] = rounded_pair(y[2 * i] * step, y[2 * i + 1] * step);
    for (const Side side : {Side::rowwise, Side::columnwise})
      if (d.side[static_cast<int>(side)].data)
        store_factors(factors_of(d, p, side, seat) + r * d.matrix.columns, pair, seat, r, extent);
  }
}

/// With scales of blocks, which run along rows or along columns.
template <Format F, class M, class Extent>
__device__ void factor_blocks(Pairs& x, const Descriptor& d, const Patch& p, const Extent& extent,
                              Shared<F, M>& shared) {
  formats::TensorScale tensor[2];
  for (int s = 0; s < 2; ++s) {
    tensor[s] = member_scale<F>(static_cast<Side>(s), d, p);
    if (d.side[s].data) Encodings<F>(tensor[s], shared.encodings[s]).prepare();
  }
  if constexpr (follows_scale<F>) __syncthreads();
  if (d.side[0].data) factor_rows<F, M>(x, d, p, extent, shared, tensor[0]);
  if (d.side[1].data) factor_columns<F, M>(x, d, p, extent, shared, tensor[1]);
}

template <Format F, class M, class Extent>
__device__ void factor_patch(const Descriptor& d, const Patch& p, const Extent& extent, Shared<F, M>& shared) {
  Pairs x = load<FromBf16>(SourcePatch<FromBf16>(d, p).origin, d.matrix.columns, Seat(), extent);
  if (d.not_finite != nullptr && not_finite(x)) *d.not_finite = 1;
  if constexpr (F::scaled)
    factor_blocks<F, M>(x, d, p, extent, shared);
  else
    factor_alike<F>(x, d, p, extent, d.side[d.side[0].amax ? 0 : 1].amax[p.member]);
}

/// Not inlined, so that the registers of these rare patches do not count for the others.
template <Format F, class M>
__device__ __noinline__ void factor_part(const Descriptor& d, const Task& task, bool vectors, Shared<F, M>& shared) {
  const Patch p = patch_of(d, task);
  factor_patch<F, M>(d, p, Part{p, d.matrix.columns, vectors}, shared);
}

template <Format F, class M>
__global__ void __launch_bounds__(threads, 4) factors_kernel(const __grid_constant__ TableView table) {
  __shared__ Descriptor descriptor;
  __shared__ Shared<F, M> shared;
  // Tasks run backwards, as in copies_kernel: the amax pass left the last values in the cache.
  const Task task = table.owned[F::tensor_amax ? gridDim.x - 1 - blockIdx.x : blockIdx.x];
  const Descriptor& d = fetch(table, task, descriptor);
  if constexpr (F::tensor_amax) await_previous();
  const Patch p = patch_of(d, task);
  if (p.rows == 0) return;
  const bool vectors = d.aligned.values && d.aligned.rowwise && d.aligned.columnwise;
  if (vectors && owned_whole(d, p))
    factor_patch<F, M>(d, p, Whole(), shared);
  else
    factor_part<F, M>(d, task, vectors, shared);
}

template <Format F, class M>
void factor(Stream& stream, const TableView& table) {
  start<threads, F::tensor_amax ? Begins::early : Begins::in_turn>(stream, factors_kernel<F, M>, table.owned.count,
                                                                   table);
}

}  // namespace
}  // namespace device

void make_factors(Stream& stream, FormatId format, const QuantizedMatrix& matrix, Purpose purpose) {
  const TableView view = view_of_one(stream, format, matrix, Contents::factors);
  find_amax(stream, format, view, Reading::bf16, purpose);
  visit_format(format, [&]<class F>() {
    if constexpr (has_factors_of<F>)
      with_purpose<F, FromBf16>(purpose, [&]<class M>() { device::factor<F, M>(stream, view); });
  });
}

}  // namespace tessera::quantizer
