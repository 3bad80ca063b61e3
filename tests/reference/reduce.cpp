#include "tests/reference/reduce.hpp"

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>

namespace tessera::reference {
namespace {

template <class T>
std::vector<T> sum(std::span<const T> in, std::int64_t parts) {
  const std::size_t n = in.size() / static_cast<std::size_t>(parts);
  std::vector<T> out(in.begin(), in.begin() + static_cast<std::ptrdiff_t>(n));
  for (std::size_t p = 1; p < static_cast<std::size_t>(parts); ++p)
    for (std::size_t i = 0; i < n; ++i) out[i] += in[p * n + i];
  return out;
}

template <class T>
std::vector<T> add(std::span<const T> out, std::span<const T> in, std::int64_t parts) {
  std::vector<T> sums(out.begin(), out.end());
  for (std::size_t p = 0; p < static_cast<std::size_t>(parts); ++p)
    for (std::size_t i = 0; i < sums.size(); ++i) sums[i] += in[p * sums.size() + i];
  return sums;
}

// m 2^e with an integer m below 2^24.
struct Parts {
  std::uint64_t m;
  int e;
};
Parts parts_of(float x) {
  const std::uint32_t bits = std::bit_cast<std::uint32_t>(x) & 0x7FFFFFFFu, exponent = bits >> 23;
  if (exponent == 0) return {bits, -149};
  return {(bits & 0x7FFFFFu) | 0x800000u, static_cast<int>(exponent) - 150};
}

// Squares are counted in units of 2^-300, in which the square of half a unit in the last place is an integer too.
Natural square_of_midpoint(std::uint32_t bits) {
  const Parts low = parts_of(std::bit_cast<float>(bits));
  const std::uint64_t twice = 2 * low.m + 1;  // 2 x midpoint: the next float has the same exponent or begins the next
  Natural n;
  n.add(twice * twice, 2 * (low.e - 1) + 300);
  return n;
}

}  // namespace

std::vector<float> sum_in_order(std::span<const float> in, std::int64_t parts) { return sum(in, parts); }
std::vector<double> sum_in_order(std::span<const double> in, std::int64_t parts) { return sum(in, parts); }

std::vector<float> add_in_order(std::span<const float> out, std::span<const float> in, std::int64_t parts) {
  return add(out, in, parts);
}
std::vector<double> add_in_order(std::span<const double> out, std::span<const double> in, std::int64_t parts) {
  return add(out, in, parts);
}

void Natural::add(std::uint64_t value, int shift) {
  std::uint8_t carry = 0;
  for (auto i = static_cast<std::size_t>(shift); value != 0 || carry != 0; ++i, value >>= 1) {
    const auto total = static_cast<std::uint8_t>(bits_.at(i) + (value & 1) + carry);
    bits_[i] = total & 1;
    carry = total >> 1;
  }
}

void Natural::add(const Natural& other) {
  for (int i = 0; i < static_cast<int>(other.bits_.size()); ++i) add(other.bits_[static_cast<std::size_t>(i)], i);
}

bool Natural::operator<(const Natural& other) const {
  return std::lexicographical_compare(bits_.rbegin(), bits_.rend(), other.bits_.rbegin(), other.bits_.rend());
}

float norm(std::span<const float> x) {
  Natural squares;
  for (float v : x) squares.add(parts_of(v).m * parts_of(v).m, 2 * parts_of(v).e + 300);
  // Searches for the smallest float whose midpoint with the next float is not below the root; a tie goes to the even
  // one.
  std::uint32_t low = 0, high = 0x7F800000u;
  while (low < high) {
    const std::uint32_t middle = low + (high - low) / 2;
    const Natural border = square_of_midpoint(middle);
    if (border < squares || (border == squares && (middle & 1) != 0))
      low = middle + 1;
    else
      high = middle;
  }
  return std::bit_cast<float>(low);
}

ClipResult clip(std::span<const float> x, float clip, float limit) {
  ClipResult result;
  const bool finite = std::ranges::all_of(x, [](float v) { return std::isfinite(v); });
  result.norm = finite ? norm(x) : std::numeric_limits<float>::quiet_NaN();
  result.skip = !std::isfinite(result.norm) ? ClipResult::not_finite : result.norm > limit ? ClipResult::spike : 0;
  if (clip > 0) result.coefficient = clip / (result.norm + 1e-6f);
  if (result.coefficient > 1) result.coefficient = 1;
  return result;
}

}  // namespace tessera::reference
