// Gradients are rounded in packs: a thread takes four neighbours, and the threads of a block find its largest magnitude
// together. Each element is read once.
#include "kernels/base/packs.cuh"
#include "kernels/formats/fp8_block.hpp"
#include "kernels/formats/mx.hpp"
#include "kernels/quantize/codes.cuh"
#include "kernels/reduce/back.hpp"

namespace tessera::reduce {
namespace {

constexpr int mine = 4;
constexpr std::uint32_t infinity = 0x7F800000u, not_a_number = 0x7FC00000u;

__device__ std::uint8_t no_number(std::uint8_t) { return 255; }
__device__ float no_number(float) { return __uint_as_float(not_a_number); }

/// Launches f(i, v) for each pack i of four gradients.
template <class F> void start_packs(Stream& stream, const Tensor& gradients, const F& f) {
  const auto* const x = reinterpret_cast<const float4*>(gradients.as<float>());
  packs::start(stream, gradients.elements() / mine, [=] __device__(std::int64_t i) {
    const float4 v = x[i];
    f(i, v);
  });
}

template <class Format, int block> void encode_blocks(Stream& stream, const Tensor& gradients, const WireArray& out) {
  using Scale = typename Format::Scale;
  auto* const codes = reinterpret_cast<std::uint32_t*>(out.values.as<std::uint8_t>());
  auto* const scales = out.scales.as<Scale>();
  start_packs(stream, gradients, [=] __device__(std::int64_t i, const float4& v) {
    constexpr int team = block / mine;  // neighbours in a warp, all of them at work: there are whole blocks only
    const int lane = static_cast<int>(threadIdx.x % 32);
    const unsigned together = team == 32 ? ~0u : ((1u << (team % 32)) - 1) << (lane / team * team);
    std::uint32_t top = 0;
    for (const float one : {v.x, v.y, v.z, v.w}) top = max(top, __float_as_uint(one) & 0x7FFFFFFFu);
    for (int other = team / 2; other > 0; other /= 2) top = max(top, __shfl_xor_sync(together, top, other));
    const bool finite = top < infinity;
    const formats::Encoding<Scale> encoding = Format::encoding(__uint_as_float(finite ? top : 0u), {});
    const float by = finite ? encoding.multiplier : __uint_as_float(not_a_number);
    codes[i] = quantizer::device::e4m3_pair(v.x * by, v.y * by) |
               quantizer::device::e4m3_pair(v.z * by, v.w * by) << 16;
    if (lane % team == 0) scales[i / team] = finite ? encoding.scale : no_number(Scale{});
  });
}

void encode_bf16(Stream& stream, const Tensor& gradients, const Tensor& out) {
  auto* const pairs = reinterpret_cast<uint2*>(out.as<bf16>());
  const auto two = [] __device__(float low, float high) {
    return std::uint32_t{bf16(low).bits} | std::uint32_t{bf16(high).bits} << 16;
  };
  start_packs(stream, gradients, [=] __device__(std::int64_t i, const float4& v) {
    pairs[i] = make_uint2(two(v.x, v.y), two(v.z, v.w));
  });
}

}  // namespace

bool encode_gradients(Stream& stream, GradientWire wire, const Tensor& gradients, const WireArray& out) {
  if (!columns::aligned(gradients) || !columns::aligned(out.values) || gradients.elements() % mine != 0) return false;
  switch (wire) {
    case GradientWire::fp32: return false;
    case GradientWire::bf16: encode_bf16(stream, gradients, out.values); return true;
    case GradientWire::mxfp8: encode_blocks<formats::Mxfp8, 32>(stream, gradients, out); return true;
    case GradientWire::fp8_block: encode_blocks<formats::Fp8BlockOneD, 128>(stream, gradients, out); return true;
  }
  return false;
}

}  // namespace tessera::reduce
