#include "io/checkpoint/elements.hpp"

#include <cstring>

#include "kernels/digest/digest.hpp"

namespace tessera {
namespace {

constexpr std::uint64_t phi = 0x9E3779B97F4A7C15u;

template <class Bits>
std::uint64_t digest_of(const Bits* bits, std::int64_t count, std::uint64_t first) {
  std::uint64_t sum = 0;
  for (std::int64_t i = 0; i < count; ++i) sum += mix64(bits[i] ^ (first + static_cast<std::uint64_t>(i) + 1) * phi);
  return sum;
}

/// Number of elements whose exponent bits are all set.
template <class Bits>
std::uint64_t with_exponent(const Bits* bits, std::int64_t count, Bits exponent) {
  std::uint64_t found = 0;
  for (std::int64_t i = 0; i < count; ++i) found += (bits[i] & exponent) == exponent;
  return found;
}

}  // namespace

std::uint64_t host_digest(const void* elements, DType type, std::int64_t count, std::int64_t first) {
  const auto start = static_cast<std::uint64_t>(first);
  switch (size_of(type)) {
    case 1:
      return digest_of(static_cast<const std::uint8_t*>(elements), count, start);
    case 2:
      return digest_of(static_cast<const std::uint16_t*>(elements), count, start);
    case 4:
      return digest_of(static_cast<const std::uint32_t*>(elements), count, start);
    default:
      return digest_of(static_cast<const std::uint64_t*>(elements), count, start);
  }
}

std::uint64_t non_finite(const void* elements, DType type, std::int64_t count) {
  if (type == DType::f32) return with_exponent(static_cast<const std::uint32_t*>(elements), count, 0x7F800000u);
  if (type == DType::bf16)
    return with_exponent(static_cast<const std::uint16_t*>(elements), count, std::uint16_t{0x7F80});
  return 0;
}

void convert_elements(void* to, DType to_type, const void* from, DType from_type, std::int64_t count) {
  if (to_type == from_type) {
    std::memcpy(to, from, static_cast<std::size_t>(count * size_of(to_type)));
  } else if (to_type == DType::f32 && from_type == DType::bf16) {
    for (std::int64_t i = 0; i < count; ++i)
      static_cast<float*>(to)[i] = static_cast<float>(static_cast<const bf16*>(from)[i]);
  } else {
    require(to_type == DType::bf16 && from_type == DType::f32, "convert_elements", "fp32 and bf16 alone convert");
    for (std::int64_t i = 0; i < count; ++i) static_cast<bf16*>(to)[i] = bf16(static_cast<const float*>(from)[i]);
  }
}

}  // namespace tessera
