#pragma once
#include <bit>
#include <cstddef>
#include <cstdint>
#include <type_traits>

#include "kernels/base/error.hpp"
#include "kernels/base/platform.hpp"

namespace tessera {

/// The upper half of an fp32, rounded to nearest even. NaN stays NaN (quiet), denormals are kept.
struct bf16 {
  std::uint16_t bits = 0;

  bf16() = default;
  TESSERA_FN constexpr explicit bf16(float x) {
    const auto u = std::bit_cast<std::uint32_t>(x);
    const std::uint32_t rounded = (u + 0x7FFFu + ((u >> 16) & 1u)) >> 16;
    const std::uint32_t quiet = (u >> 16) | 0x40u;
    bits = static_cast<std::uint16_t>((u & 0x7FFFFFFFu) > 0x7F800000u ? quiet : rounded);
  }
  TESSERA_FN constexpr operator float() const { return std::bit_cast<float>(static_cast<std::uint32_t>(bits) << 16); }
};
static_assert(sizeof(bf16) == 2);

enum class DType : std::uint8_t { f64, f32, bf16, u8, u16, i32, i64, u64 };

constexpr std::int64_t size_of(DType type) {
  constexpr std::int64_t sizes[] = {8, 4, 2, 1, 2, 4, 8, 8};
  return sizes[static_cast<int>(type)];
}
constexpr const char* name_of(DType type) {
  constexpr const char* names[] = {"f64", "f32", "bf16", "u8", "u16", "i32", "i64", "u64"};
  return names[static_cast<int>(type)];
}

template <class T> struct DTypeOf;
template <> struct DTypeOf<double> { static constexpr DType value = DType::f64; };
template <> struct DTypeOf<float> { static constexpr DType value = DType::f32; };
template <> struct DTypeOf<bf16> { static constexpr DType value = DType::bf16; };
template <> struct DTypeOf<std::uint8_t> { static constexpr DType value = DType::u8; };
template <> struct DTypeOf<std::uint16_t> { static constexpr DType value = DType::u16; };
template <> struct DTypeOf<std::int32_t> { static constexpr DType value = DType::i32; };
template <> struct DTypeOf<std::int64_t> { static constexpr DType value = DType::i64; };
template <> struct DTypeOf<std::uint64_t> { static constexpr DType value = DType::u64; };
template <class T> inline constexpr DType dtype_of = DTypeOf<T>::value;

/// The type of statistics and sums over values of type T.
template <class T> using Accumulator = std::conditional_t<std::is_same_v<T, double>, double, float>;

/// Calls `f.template operator()<T>()` with the real type T of `type`: double, float or bf16. Other types are refused in
/// the name of `kernel`.
template <class F> decltype(auto) dispatch_real(DType type, const char* kernel, F&& f) {
  switch (type) {
    case DType::f64: return f.template operator()<double>();
    case DType::f32: return f.template operator()<float>();
    case DType::bf16: return f.template operator()<bf16>();
    default: refuse(kernel, "takes f64, f32 or bf16");
  }
}

}  // namespace tessera
