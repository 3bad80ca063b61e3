#include "kernels/reduce/wire.hpp"

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <limits>
#include <map>

#include "kernels/reduce/reduce.hpp"
#include "tests/reference/wire.hpp"
#include "tests/support/compare.hpp"
#include "tests/support/on_device.hpp"
#include "tests/support/shown.hpp"

namespace tessera {
namespace {

constexpr float nan = std::numeric_limits<float>::quiet_NaN(), inf = std::numeric_limits<float>::infinity();
constexpr GradientWire blocks[] = {GradientWire::mxfp8, GradientWire::fp8_block};

WireArray array_of(Device& device, GradientWire wire, Shape shape) {
  const WireTraits traits = traits_of(wire);
  const Tensor values = device.allocate(Category::staging, traits.values, shape);
  if (traits.block == 0) return values;
  return {values, device.allocate(Category::staging, traits.scales, {shape.elements() / traits.block})};
}

/// What a gradient contributes to a sum.
std::vector<float> rounded(Device& device, GradientWire wire, const std::vector<float>& gradient) {
  const Shape shape{std::ssize(gradient)};
  const WireArray own = array_of(device, wire, shape);
  encode_gradients(device.compute(), wire, test::on_device(device, shape, gradient), own);
  WireArray none = array_of(device, wire, {0});
  none.values = none.values.view({0, shape[0]});
  const Tensor out = test::poisoned<float>(device, shape);
  sum_in_order(device.compute(), out, {own, none, 0, 0, wire});
  return test::on_host<float>(device, out);
}

/// Random numbers over `binades` binades around 2^exponent.
std::vector<float> spread(std::int64_t n, unsigned seed, int exponent, int binades) {
  std::vector<float> values = test::uniform<float>(2 * n, seed);
  for (std::int64_t i = 0; i < n; ++i)
    values[static_cast<std::size_t>(i)] =
        std::ldexp(values[static_cast<std::size_t>(i)],
                   exponent + static_cast<int>(values[static_cast<std::size_t>(n + i)] * static_cast<float>(binades)));
  values.resize(static_cast<std::size_t>(n));
  return values;
}

TEST(Wire, GradientsAreRoundedByTheDefinition) {
  Device device;
  for (GradientWire wire : {GradientWire::bf16, GradientWire::mxfp8, GradientWire::fp8_block})
    for (int exponent : {0, -30, 60, -125}) {
      const std::vector<float> gradient = spread(12 * 128, static_cast<unsigned>(exponent + 200), exponent, 12);
      EXPECT_TRUE(test::same_bits(rounded(device, wire, gradient), reference::on_wire(wire, gradient)))
          << static_cast<int>(wire) << ", around 2^" << exponent;
    }
}

// A block's neighbours do not show: each is rounded as it is alone.
TEST(Wire, ABlockIsRoundedByItself) {
  Device device;
  for (GradientWire wire : blocks) {
    SCOPED_TRACE(test::shown(wire));
    const std::int64_t block = traits_of(wire).block;
    const std::vector<float> gradient = spread(9 * block, 7, 0, 30);
    const std::vector<float> whole = rounded(device, wire, gradient);
    for (std::int64_t b = 0; b < 9; ++b) {
      const auto part = [&](const std::vector<float>& all) {
        return std::vector<float>(all.begin() + b * block, all.begin() + (b + 1) * block);
      };
      EXPECT_TRUE(test::same_bits(rounded(device, wire, part(gradient)), part(whole)));
    }
  }
}

TEST(Wire, ZerosAreZeros) {
  Device device;
  for (GradientWire wire : blocks) {
    SCOPED_TRACE(test::shown(wire));
    const std::vector<float> zeros(static_cast<std::size_t>(2 * traits_of(wire).block), 0.0f);
    EXPECT_TRUE(test::same_bits(rounded(device, wire, zeros), zeros));
  }
  const WireArray out = array_of(device, GradientWire::mxfp8, {32});
  encode_gradients(device.compute(), GradientWire::mxfp8, test::on_device(device, std::vector<float>(32, 0.0f)), out);
  EXPECT_EQ(test::on_host<std::uint8_t>(device, out.scales), std::vector<std::uint8_t>{0}) << "2^-127";
  EXPECT_EQ(test::on_host<std::uint8_t>(device, out.values), std::vector<std::uint8_t>(32, 0));
}

TEST(Wire, WhatIsNotFiniteStaysSo) {
  Device device;
  for (GradientWire wire : {GradientWire::bf16, GradientWire::mxfp8, GradientWire::fp8_block})
    for (float bad : {nan, -nan, inf, -inf})
      for (std::size_t at : {0, 31, 77, 127}) {
        std::vector<float> gradient(384, 1.0f);
        gradient[128 + at] = bad;
        const std::vector<float> found = rounded(device, wire, gradient);
        EXPECT_FALSE(std::isfinite(found[128 + at]));
        EXPECT_EQ(found[0], 1.0f);
        EXPECT_EQ(found[383], 1.0f) << "other blocks are left alone";
      }
}

// Running sums are fp32: an addend of the last bit counts.
TEST(Wire, SumsAreNotRounded) {
  Device device;
  for (GradientWire wire : {GradientWire::bf16, GradientWire::mxfp8, GradientWire::fp8_block}) {
    SCOPED_TRACE(test::shown(wire));
    const std::vector<float> gradient(256, 0x1p-20f);
    const WireArray own = array_of(device, wire, {256}), others = array_of(device, wire, {2 * 256});
    encode_gradients(device.compute(), wire, test::on_device(device, gradient), own);
    encode_gradients(device.compute(), wire, test::on_device(device, std::vector<float>(512, 0x1p-20f)), others);
    WireArray two = others;
    two.values = others.values.view({2, 256});
    const Tensor sum = test::on_device(device, std::vector<float>(256, 1.0f));
    add_in_order(device.compute(), sum, {own, two, 1, 0, wire});
    EXPECT_EQ(test::on_host<float>(device, sum), std::vector<float>(256, 1.0f + 3 * 0x1p-20f));
  }
}

std::vector<float> drawn(Device& device, const std::vector<float>& gradient, std::int64_t first, std::uint64_t step,
                         std::int64_t micro_batch) {
  const Shape shape{std::ssize(gradient)};
  const Tensor out = device.allocate(Category::staging, DType::bf16, shape);
  const WireDraws draws{{5, test::on_device(device, std::vector<std::uint64_t>{step})}, 99, micro_batch, first};
  encode_at_random(device.compute(), test::on_device(device, shape, gradient), out, draws);
  std::vector<float> values;
  for (bf16 x : test::on_host<bf16>(device, out)) values.push_back(x);
  return values;
}

// Draws belong to elements: a piece has those of the whole, wherever it begins.
TEST(Wire, DrawsNameTheElement) {
  Device device;
  const std::vector<float> gradient = spread(1000, 4, 0, 20);
  const std::vector<float> whole = drawn(device, gradient, 40, 3, 2);
  for (std::int64_t begin : {0, 1, 7, 8, 333})
    for (std::int64_t count : {1, 8, 500}) {
      SCOPED_TRACE(test::shown(begin, count));
      const auto part = [&](const std::vector<float>& all) {
        return std::vector<float>(all.begin() + begin, all.begin() + begin + count);
      };
      EXPECT_TRUE(test::same_bits(drawn(device, part(gradient), 40 + begin, 3, 2), part(whole)));
    }
  EXPECT_FALSE(test::same_bits(drawn(device, gradient, 40, 4, 2), whole)) << "a step has its own";
  EXPECT_FALSE(test::same_bits(drawn(device, gradient, 40, 3, 1), whole)) << "a micro-batch has its own";
}

TEST(Wire, DrawsRoundToTheNeighboursWithoutBias) {
  Device device;
  constexpr float quarter = 1.0f + 0x1p-9f;  // a quarter of the way from 1 to the next bf16
  const std::vector<float> found = drawn(device, std::vector<float>(40000, quarter), 0, 1, 0);
  std::map<float, int> counts;
  for (float x : found) ++counts[x];
  ASSERT_EQ(counts.size(), 2u);
  EXPECT_NEAR(counts[1.0f + 0x1p-7f], 10000, 500);
  EXPECT_EQ(counts[1.0f] + counts[1.0f + 0x1p-7f], 40000);
  for (float exact : {1.5f, -0.0f, 0.0f}) EXPECT_EQ(drawn(device, {exact}, 0, 1, 0).front(), exact);
  for (float bad : {nan, inf, -inf}) EXPECT_FALSE(std::isfinite(drawn(device, {bad}, 0, 1, 0).front()));
}

TEST(Wire, RefusesWhatDoesNotFit) {
  Device device;
  const Tensor gradients = test::poisoned<float>(device, {96});
  const WireArray out = array_of(device, GradientWire::mxfp8, {96});
  EXPECT_THROW(encode_gradients(device.compute(), GradientWire::bf16, gradients, out), Error);
  EXPECT_THROW(encode_gradients(device.compute(), GradientWire::fp8_block, gradients, out), Error);
  EXPECT_THROW(encode_gradients(device.compute(), GradientWire::mxfp8, gradients.flat(0, 80), out.values.flat(0, 80)),
               Error);
}

}  // namespace
}  // namespace tessera
