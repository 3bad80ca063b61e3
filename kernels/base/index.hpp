#pragma once
#include <compare>
#include <cstdint>

namespace tessera {

/// A count or position of elements. Bytes are derived from it by the format alone (data_bytes).
struct ElementIndex {
  std::int64_t value = 0;

  constexpr ElementIndex() = default;
  constexpr explicit ElementIndex(std::int64_t v) : value(v) {}
  constexpr ElementIndex operator+(ElementIndex other) const { return ElementIndex(value + other.value); }
  constexpr ElementIndex operator-(ElementIndex other) const { return ElementIndex(value - other.value); }
  constexpr ElementIndex& operator+=(ElementIndex other) { value += other.value; return *this; }
  constexpr auto operator<=>(const ElementIndex&) const = default;
};

constexpr std::int64_t round_up(std::int64_t n, std::int64_t multiple) {
  return (n + multiple - 1) / multiple * multiple;
}
constexpr std::int64_t ceil_div(std::int64_t n, std::int64_t d) { return (n + d - 1) / d; }

}  // namespace tessera
