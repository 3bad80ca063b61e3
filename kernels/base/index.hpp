#pragma once
#include <compare>
#include <cstdint>

#include "kernels/base/dtype.hpp"

namespace tessera {

/// A count or position of elements / of bytes. Two types, so that neither is taken for the other; byte positions are
/// always derived from element positions (bytes_of).
template <class Unit> struct Index {
  std::int64_t value = 0;

  constexpr Index() = default;
  constexpr explicit Index(std::int64_t v) : value(v) {}
  constexpr Index operator+(Index other) const { return Index(value + other.value); }
  constexpr Index operator-(Index other) const { return Index(value - other.value); }
  constexpr Index& operator+=(Index other) { value += other.value; return *this; }
  constexpr auto operator<=>(const Index&) const = default;
};
using ElementIndex = Index<struct ElementUnit>;
using ByteIndex = Index<struct ByteUnit>;

constexpr ByteIndex bytes_of(ElementIndex elements, DType type) { return ByteIndex(elements.value * size_of(type)); }

constexpr std::int64_t round_up(std::int64_t n, std::int64_t multiple) {
  return (n + multiple - 1) / multiple * multiple;
}
constexpr std::int64_t ceil_div(std::int64_t n, std::int64_t d) { return (n + d - 1) / d; }

}  // namespace tessera
