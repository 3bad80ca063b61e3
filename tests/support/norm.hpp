#pragma once
#include <gtest/gtest.h>

#include <cmath>
#include <vector>

#include "kernels/base/dtype.hpp"
#include "tests/support/tolerances.hpp"

namespace tessera::test {

/// Expects ||actual - expected|| <= tolerance ||expected||. Empty ranges, unequal sizes and NaN fail.
template <class T>
::testing::AssertionResult near_in_norm(const std::vector<T>& actual, const std::vector<double>& expected,
                                        double tolerance) {
  if (actual.empty() || actual.size() != expected.size())
    return ::testing::AssertionFailure() << actual.size() << " elements instead of " << expected.size();
  double error = 0, size = 0;
  for (std::size_t i = 0; i < actual.size(); ++i) {
    const double d = static_cast<double>(actual[i]) - expected[i];
    error += d * d;
    size += expected[i] * expected[i];
  }
  if (std::sqrt(error) <= tolerance * std::sqrt(size)) return ::testing::AssertionSuccess();
  return ::testing::AssertionFailure() << "relative error " << std::sqrt(error / size);
}

/// Expects sums in fp32, rounded to T once: within `ulps` of T for each element, and within fp32's error for the norm.
template <class T>
::testing::AssertionResult rounded_once(const std::vector<T>& actual, const std::vector<double>& expected,
                                        double ulps = 1) {
  if constexpr (!std::is_same_v<T, bf16>)
    return near_in_norm(actual, expected, sum_tolerance<T>);
  else {
    if (actual.empty() || actual.size() != expected.size())
      return ::testing::AssertionFailure() << actual.size() << " elements instead of " << expected.size();
    double size = 0;
    for (double e : expected) size += e * e;
    const double typical = std::sqrt(size / static_cast<double>(expected.size()));
    for (std::size_t i = 0; i < actual.size(); ++i) {
      const double ulp = std::ldexp(1.0, std::ilogb(std::abs(expected[i]) + 1e-30) - 7);
      if (!(std::abs(static_cast<double>(actual[i]) - expected[i]) <= ulps * ulp + 1e-5 * typical))
        return ::testing::AssertionFailure() << "element " << i << " is " << actual[i] << " instead of " << expected[i];
    }
    return ::testing::AssertionSuccess();
  }
}

}  // namespace tessera::test
