#pragma once
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <ranges>
#include <string>

#include "kernels/base/dtype.hpp"
#include "tests/support/tolerances.hpp"

namespace tessera::test {

/// The types that kernels of real numbers take: TYPED_TEST_SUITE(Suite, test::Reals).
using Reals = ::testing::Types<double, float, bf16>;

namespace detail {
inline ::testing::AssertionResult sizes(std::size_t actual, std::size_t expected) {
  if (actual == 0 || expected == 0) return ::testing::AssertionFailure() << "nothing to compare";
  if (actual != expected)
    return ::testing::AssertionFailure() << "sizes differ: " << actual << " instead of " << expected;
  return ::testing::AssertionSuccess();
}
}  // namespace detail

/// Raises the worst of several errors to `other`. A NaN stays, so that it fails every comparison with a limit.
inline void keep_worst(double& worst, double other) {
  if (!std::isnan(worst) && !(other <= worst)) worst = other;
}

/// |actual - expected| <= tolerance max(1, |expected|), element by element. A NaN on either side, an empty range and
/// unequal sizes fail; an infinity equals itself alone.
template <std::ranges::sized_range A, std::ranges::sized_range E>
::testing::AssertionResult near(const A& actual, const E& expected, double tolerance) {
  if (auto same = detail::sizes(std::size(actual), std::size(expected)); !same) return same;
  auto e = std::begin(expected);
  std::size_t i = 0;
  for (const auto& a : actual) {
    const auto got = static_cast<double>(a), want = static_cast<double>(*e++);
    const bool close = std::isfinite(want) && std::abs(got - want) <= tolerance * std::max(1.0, std::abs(want));
    if (got != want && !close)
      return ::testing::AssertionFailure() << "element " << i << " is " << got << " instead of " << want;
    ++i;
  }
  return ::testing::AssertionSuccess();
}

/// Expects that two ranges hold the same bits (so a NaN equals itself). Empty ranges, unequal sizes or types fail.
template <std::ranges::contiguous_range A, std::ranges::contiguous_range E>
::testing::AssertionResult same_bits(const A& actual, const E& expected) {
  using T = std::ranges::range_value_t<A>;
  static_assert(std::is_same_v<T, std::ranges::range_value_t<E>> && std::is_trivially_copyable_v<T>);
  if (auto same = detail::sizes(std::size(actual), std::size(expected)); !same) return same;
  for (std::size_t i = 0; i < std::size(actual); ++i)
    if (std::memcmp(std::data(actual) + i, std::data(expected) + i, sizeof(T)) != 0)
      return ::testing::AssertionFailure() << "element " << i << " of " << std::size(actual) << " has other bits";
  return ::testing::AssertionSuccess();
}

/// Expects that every element is NaN; an empty range fails.
template <std::ranges::sized_range A> ::testing::AssertionResult all_nan(const A& actual) {
  if (std::size(actual) == 0) return ::testing::AssertionFailure() << "nothing to compare";
  std::size_t i = 0;
  for (const auto& a : actual) {
    if (!std::isnan(static_cast<double>(a))) return ::testing::AssertionFailure() << "element " << i << " is not NaN";
    ++i;
  }
  return ::testing::AssertionSuccess();
}

}  // namespace tessera::test
