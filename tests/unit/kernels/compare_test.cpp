#include "tests/support/compare.hpp"

#include <gtest/gtest.h>

#include <limits>
#include <span>
#include <vector>

#include "tests/support/on_device.hpp"

namespace tessera::test {
namespace {

constexpr double nan = std::numeric_limits<double>::quiet_NaN(), inf = std::numeric_limits<double>::infinity();
using Values = std::vector<double>;

TEST(Near, TakesWhatIsWithinTolerance) {
  EXPECT_TRUE(near(Values{1, -2, 0}, Values{1.001, -2.001, 0.001}, 1e-2));
  EXPECT_TRUE(near(Values{1000}, Values{1001}, 1e-2)) << "relative for large values";
  EXPECT_TRUE(near(Values{inf, -inf}, Values{inf, -inf}, 0));
  EXPECT_TRUE(near(std::vector<bf16>{bf16(1.5f)}, std::vector<float>{1.5f}, 0)) << "types may differ";
}

TEST(Near, FailsOutsideTolerance) {
  EXPECT_FALSE(near(Values{1, 2}, Values{1, 2.1}, 1e-2));
  EXPECT_FALSE(near(Values{0}, Values{0.02}, 1e-2));
  EXPECT_FALSE(near(Values{inf}, Values{-inf}, 1e-2));
  EXPECT_FALSE(near(Values{inf}, Values{1}, 1e-2));
  EXPECT_FALSE(near(Values{1}, Values{inf}, 1e-2));
}

TEST(Near, FailsOnNaNOnEitherSideAndOnBoth) {
  EXPECT_FALSE(near(Values{nan}, Values{1}, inf));
  EXPECT_FALSE(near(Values{1}, Values{nan}, 1e-2));
  EXPECT_FALSE(near(Values{nan}, Values{nan}, 1e-2));
  EXPECT_FALSE(near(std::vector<float>{1, 2, static_cast<float>(nan)}, Values{1, 2, 3}, 1));
}

TEST(Near, FailsOnEmptyAndOnUnequalSizes) {
  EXPECT_FALSE(near(Values{}, Values{}, 1));
  EXPECT_FALSE(near(Values{}, Values{1}, 1));
  EXPECT_FALSE(near(Values{1}, Values{}, 1));
  EXPECT_FALSE(near(Values{1, 1}, Values{1}, 1));
}

TEST(KeepWorst, KeepsEveryNaN) {
  double worst = 0;
  for (const double error : {0.5, 0.25, 2.0, 1.0}) keep_worst(worst, error);
  EXPECT_EQ(worst, 2);
  for (const double error : {nan, 3.0, 0.0}) keep_worst(worst, error);
  EXPECT_TRUE(std::isnan(worst));
}

TEST(SameBits, ComparesBits) {
  EXPECT_TRUE(same_bits(Values{1, nan}, Values{1, nan}));
  EXPECT_FALSE(same_bits(Values{0.0}, Values{-0.0}));
  EXPECT_FALSE(same_bits(Values{1, 2}, Values{1, 3}));
  EXPECT_FALSE(same_bits(Values{1, 2}, Values{1}));
  EXPECT_FALSE(same_bits(Values{}, Values{}));
}

TEST(AllNan, FailsOnAnyNumberAndOnEmpty) {
  EXPECT_TRUE(all_nan(Values{nan, -nan}));
  EXPECT_FALSE(all_nan(Values{nan, inf}));
  EXPECT_FALSE(all_nan(Values{}));
}

TEST(OnDevice, ReturnsWhatWasSent) {
  Device device;
  const auto values = uniform<bf16>(301, 7);
  EXPECT_TRUE(same_bits(on_host<bf16>(device, on_device(device, Shape{7, 43}, values)), values));
  EXPECT_TRUE(all_nan(on_host<bf16>(device, poisoned<bf16>(device, Shape{5}))));
  EXPECT_TRUE(all_nan(on_host<float>(device, poisoned<float>(device, Shape{5}))));
  EXPECT_TRUE(all_nan(on_host<double>(device, poisoned<double>(device, Shape{5}))));
  EXPECT_THROW(on_device(device, Shape{2}, Values{1}), Error);
}

}  // namespace
}  // namespace tessera::test
