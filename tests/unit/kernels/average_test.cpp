#include "kernels/optim/average.hpp"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <random>

#include "tests/reference/average.hpp"
#include "tests/support/compare.hpp"
#include "tests/support/on_device.hpp"
#include "tests/support/shown.hpp"

namespace tessera {
namespace {

using test::on_device, test::on_host, test::same_bits;

std::vector<float> drawn(std::size_t count, std::mt19937& draw) {
  std::vector<float> values;
  for (std::size_t i = 0; i < count; ++i)
    values.push_back(std::ldexp(std::normal_distribution<float>()(draw), static_cast<int>(draw() % 40) - 20));
  return values;
}

TEST(AverageStep, EqualsReference) {
  Device device;
  std::mt19937 draw(11);
  for (const std::size_t count : {1, 7, 4096, 70001})
    for (const float rate : {1.0f, 0.5f, 0.001f, 1e-7f})
      for (const std::int32_t skip : {0, ClipResult::not_finite, ClipResult::spike}) {
        SCOPED_TRACE(test::shown(count));
        const ClipResult clip{7, 0.25f, skip};
        const Tensor result = device.allocate(Category::batch, DType::u8, {std::int64_t{sizeof clip}});
        device.upload(device.compute(), result, &clip);
        const std::vector<float> begin = drawn(count, draw);
        std::vector<float> wanted = begin;
        const Tensor average = on_device(device, begin);
        for (int step = 0; step < 3; ++step) {
          const std::vector<float> master = drawn(count, draw);
          average_step(device.compute(), average, on_device(device, master), rate,
                       static_cast<const ClipResult*>(result.data));
          reference::average_step(wanted, master, rate, clip);
        }
        EXPECT_TRUE(same_bits(on_host<float>(device, average), wanted)) << rate << " " << skip;
        if (count > 1000) {  // of fewer, all may round to what they were
          EXPECT_EQ(wanted != begin, skip == 0);
        }
      }
}

TEST(ExchangeValues, ExchangesEveryBit) {
  Device device;
  std::mt19937 draw(12);
  for (const std::size_t count : {1, 5, 70001}) {
    SCOPED_TRACE(test::shown(count));
    std::vector<float> one = drawn(count, draw), other = drawn(count, draw);
    if (count > 1) one[0] = std::numeric_limits<float>::quiet_NaN(), other[1] = -0.0f;
    const Tensor a = on_device(device, one), b = on_device(device, other);
    exchange_values(device.compute(), a, b);
    EXPECT_TRUE(same_bits(on_host<float>(device, a), other));
    EXPECT_TRUE(same_bits(on_host<float>(device, b), one));
  }
}

TEST(AverageStep, TakesEmptySlices) {
  Device device;
  const Tensor none = on_device(device, std::vector<float>());
  EXPECT_NO_THROW(average_step(device.compute(), none, none, 1, nullptr));
  EXPECT_NO_THROW(exchange_values(device.compute(), none, none));
}

TEST(AverageStep, RefusesOtherSizes) {
  Device device;
  const Tensor two = on_device(device, std::vector<float>{0, 0}), three = on_device(device, std::vector<float>(3, 0));
  EXPECT_THROW(average_step(device.compute(), two, three, 1, nullptr), Error);
  EXPECT_THROW(exchange_values(device.compute(), two, three), Error);
}

}  // namespace
}  // namespace tessera
