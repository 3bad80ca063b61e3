#include "kernels/base/math.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <limits>

#include "tests/support/compare.hpp"

namespace tessera {
namespace {

constexpr float infinity = std::numeric_limits<float>::infinity();
constexpr float nan = std::numeric_limits<float>::quiet_NaN();

/// Error of `got` in units of fp32's last place at `exact`.
double ulps(float got, double exact) {
  const double size = std::max(std::abs(exact), double{std::numeric_limits<float>::min()});
  return std::abs(got - exact) / std::ldexp(1.0, std::ilogb(size) - 23);
}

/// The worst error over every 197th float in [from, to], both of one sign.
template <class F, class G> double worst(float from, float to, F ours, G exact) {
  const auto a = std::bit_cast<std::uint32_t>(from), b = std::bit_cast<std::uint32_t>(to);
  double most = 0;
  for (std::uint64_t u = std::min(a, b); u <= std::max(a, b); u += 197) {
    const auto x = std::bit_cast<float>(static_cast<std::uint32_t>(u));
    test::keep_worst(most, ulps(ours(x), exact(double{x})));
  }
  return most;
}

TEST(Math, ExponentialIsWithinAnUlp) {
  const auto ours = [](float x) { return exp_of(x); };
  const auto exact = [](double x) { return std::exp(x); };
  EXPECT_LT(worst(1e-10f, 88.7f, ours, exact), 1.0);
  EXPECT_LT(worst(-1e-10f, -87.0f, ours, exact), 1.0);
  EXPECT_LT(worst(-87.0f, -103.0f, ours, exact), 1.5);
  EXPECT_EQ(exp_of(0.0f), 1.0f);
  EXPECT_EQ(exp_of(-infinity), 0.0f);
  EXPECT_EQ(exp_of(-1e30f), 0.0f);
  EXPECT_EQ(exp_of(89.0f), infinity);
  EXPECT_EQ(exp_of(infinity), infinity);
  EXPECT_TRUE(std::isnan(exp_of(nan)));
}

TEST(Math, LogarithmIsWithinAnUlp) {
  const auto ours = [](float x) { return log_of(x); };
  const auto exact = [](double x) { return std::log(x); };
  EXPECT_LT(worst(1e-45f, 3.4e38f, ours, exact), 1.0);
  EXPECT_EQ(log_of(1.0f), 0.0f);
  EXPECT_EQ(log_of(0.0f), -infinity);
  EXPECT_EQ(log_of(infinity), infinity);
  EXPECT_TRUE(std::isnan(log_of(-1.0f)));
  EXPECT_TRUE(std::isnan(log_of(nan)));
}

TEST(Math, GeluIsItsDefinition) {
  for (double x = -12; x <= 12; x += 0.0137) {
    const double inner = std::sqrt(2 / std::acos(-1.0)) * (x + 0.044715 * x * x * x);
    const double exact = 0.5 * x * (1 + std::tanh(inner));
    EXPECT_NEAR(gelu_of(x), exact, 1e-15 + 1e-15 * std::abs(x)) << x;
    EXPECT_NEAR(gelu_of(static_cast<float>(x)), exact, 2e-6 + 1e-6 * std::abs(x)) << x;
  }
  EXPECT_EQ(gelu_of(0.0f), 0.0f);
  EXPECT_EQ(gelu_of(100.0f), 100.0f);
  EXPECT_TRUE(std::isnan(gelu_of(nan)));
}

}  // namespace
}  // namespace tessera
