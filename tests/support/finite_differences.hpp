#pragma once
#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <functional>
#include <vector>

#include "tests/support/on_device.hpp"
#include "tests/support/tolerances.hpp"

namespace tessera::test {

/// Compares <gradient, v> with finite differences of `f` at `x` along random directions v. `f` is called with moved
/// points, and last with x itself, so that it need not restore anything.
inline ::testing::AssertionResult derivative_is(const std::function<double(const std::vector<double>&)>& f,
                                                const std::vector<double>& x, const std::vector<double>& gradient,
                                                std::uint64_t seed) {
  if (x.empty() || x.size() != gradient.size()) return ::testing::AssertionFailure() << "no gradient of this size";
  constexpr double h = 1e-4;
  double norm = 0;
  for (double g : gradient) norm += g * g;
  norm = std::sqrt(norm);
  for (std::uint64_t direction = 0; direction < 2; ++direction) {
    const std::vector<double> v = uniform<double>(static_cast<std::int64_t>(x.size()), seed * 2 + direction);
    const auto along = [&](double t) {
      std::vector<double> moved = x;
      for (std::size_t i = 0; i < x.size(); ++i) moved[i] += t * v[i];
      return f(moved);
    };
    const double numeric = (8 * (along(h) - along(-h)) - (along(2 * h) - along(-2 * h))) / (12 * h);
    double analytic = 0;
    for (std::size_t i = 0; i < x.size(); ++i) analytic += gradient[i] * v[i];
    const double allowed = tolerances::finite_difference * norm + tolerances::finite_difference_floor;
    if (!(std::abs(numeric - analytic) <= allowed)) {
      f(x);
      return ::testing::AssertionFailure() << "derivative " << numeric << ", gradient says " << analytic;
    }
  }
  f(x);
  return ::testing::AssertionSuccess();
}

}  // namespace tessera::test
