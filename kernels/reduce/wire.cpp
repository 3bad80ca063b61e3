#include "kernels/reduce/wire.hpp"

#include <bit>
#include <limits>

#include "kernels/base/index.hpp"
#include "kernels/base/launch.hpp"
#include "kernels/base/strips.hpp"
#include "kernels/digest/digest.hpp"
#include "kernels/formats/fp8_block.hpp"
#include "kernels/formats/mx.hpp"
#include "kernels/random/philox.hpp"
#include "kernels/reduce/back.hpp"

namespace tessera {
namespace {

constexpr std::uint32_t infinity = 0x7F800000u, magnitude_mask = 0x7FFFFFFFu;

/// The scale that makes a block NaN.
TESSERA_FN inline std::uint8_t no_number(std::uint8_t) { return 255; }
TESSERA_FN inline float no_number(float) { return std::bit_cast<float>(0x7FC00000u); }

/// A work item is a block. Loops have no branches, so that the host's compiler vectorises them.
template <class F, int block> void encode_blocks(Stream& stream, const Tensor& gradients, const WireArray& out) {
  using Scale = typename F::Scale;
  const float* const x = gradients.as<float>();
  auto* const codes = out.values.as<std::uint8_t>();
  auto* const scales = out.scales.as<Scale>();
  launch(
      stream, "encode_gradients", gradients.elements() / block, KOKKOS_LAMBDA(std::int64_t b) {
        const float* const values = x + b * block;
        std::uint32_t top = 0;
        for (int i = 0; i < block; ++i) {
          const std::uint32_t bits = std::bit_cast<std::uint32_t>(values[i]) & magnitude_mask;
          top = bits > top ? bits : top;
        }
        const bool finite = top < infinity;
        const formats::Encoding<Scale> encoding = F::encoding(std::bit_cast<float>(finite ? top : 0u), {});
        const float multiplier = finite ? encoding.multiplier : std::bit_cast<float>(0x7FC00000u);
        scales[b] = finite ? encoding.scale : no_number(Scale{});
        TESSERA_INDEPENDENT
        for (int i = 0; i < block; ++i)
          codes[b * block + i] = static_cast<std::uint8_t>(F::Element::encode(values[i] * multiplier));
      });
}

void encode_bf16(Stream& stream, const Tensor& gradients, const Tensor& out) {
  const float* const x = gradients.as<float>();
  auto* const y = out.as<bf16>();
  launch_elements(
      stream, "encode_gradients", gradients.elements(), KOKKOS_LAMBDA(std::int64_t i) { y[i] = bf16(x[i]); });
}

/// The upper half of x behind the addition of 16 random bits to the lower.
TESSERA_FN inline std::uint16_t at_random(float x, std::uint32_t draw) {
  const auto bits = std::bit_cast<std::uint32_t>(x);
  const std::uint32_t up = (bits & magnitude_mask) < infinity ? (bits + draw) >> 16 : std::uint32_t{bf16(x).bits};
  return static_cast<std::uint16_t>(up);
}

constexpr std::int64_t draws_of_a_block = 8;  // a Philox block has 128 bits

}  // namespace

void encode_gradients(Stream& stream, GradientWire wire, const Tensor& gradients, const WireArray& out) {
  const WireTraits traits = traits_of(wire);
  const std::int64_t n = gradients.elements();
  require(gradients.type == DType::f32 && out.values.type == traits.values && out.values.elements() == n,
          "encode_gradients", "takes fp32 [n], and values of the wire's type [n]");
  require(traits.block == 0 || (n % traits.block == 0 && out.scales.type == traits.scales &&
                                out.scales.elements() == n / traits.block),
          "encode_gradients", "takes whole blocks, and a scale for each");
  if (reduce::encode_gradients(stream, wire, gradients, out)) return;
  switch (wire) {
    case GradientWire::fp32: refuse("encode_gradients", "fp32 travels as it is");
    case GradientWire::bf16: return encode_bf16(stream, gradients, out.values);
    case GradientWire::mxfp8: return encode_blocks<formats::Mxfp8, 32>(stream, gradients, out);
    case GradientWire::fp8_block: return encode_blocks<formats::Fp8BlockOneD, 128>(stream, gradients, out);
  }
}

void encode_at_random(Stream& stream, const Tensor& gradients, const Tensor& out, const WireDraws& draws) {
  const std::int64_t n = gradients.elements();
  require(gradients.type == DType::f32 && out.type == DType::bf16 && out.elements() == n, "encode_at_random",
          "takes fp32 [n] and bf16 [n]");
  const float* const x = gradients.as<float>();
  auto* const y = out.as<bf16>();
  const auto* const step = draws.key.step.as<std::uint64_t>();
  const std::uint64_t seed = draws.key.seed, name = draws.name,
                      micro_batch = static_cast<std::uint64_t>(draws.micro_batch);
  const std::int64_t first = draws.first;
  const std::int64_t begin = draws.first / draws_of_a_block, end = ceil_div(draws.first + n, draws_of_a_block);
  launch(
      stream, "encode_gradients", end - begin, KOKKOS_LAMBDA(std::int64_t at) {
        const auto block = static_cast<std::uint64_t>(begin + at);
        const std::uint64_t key = mix64(mix64(name + *step) + micro_batch);
        const PhiloxBlock random = philox({{static_cast<std::uint32_t>(block), static_cast<std::uint32_t>(block >> 32),
                                            static_cast<std::uint32_t>(key), static_cast<std::uint32_t>(key >> 32)}},
                                          seed);
        for (int j = 0; j < draws_of_a_block; ++j) {
          const std::int64_t i = (begin + at) * draws_of_a_block + j - first;
          if (i >= 0 && i < n) y[i].bits = at_random(x[i], random.word[j / 2] >> 16 * (j % 2) & 0xFFFFu);
        }
      });
}

}  // namespace tessera
