#include "kernels/random/random.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <numbers>
#include <set>

#include "kernels/digest/digest.hpp"
#include "kernels/random/normal.hpp"
#include "kernels/random/philox.hpp"
#include "tests/reference/digest.hpp"
#include "tests/reference/random.hpp"
#include "tests/support/compare.hpp"
#include "tests/support/on_device.hpp"

namespace tessera {
namespace {

std::vector<std::uint32_t> words(const PhiloxBlock& b) { return {b.word, b.word + 4}; }

// Random123's known answers (kat_vectors of its distribution).
TEST(Philox, GivesTheKnownAnswers) {
  using Words = std::vector<std::uint32_t>;
  EXPECT_EQ(words(philox({{0, 0, 0, 0}}, 0)), (Words{0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8}));
  constexpr std::uint32_t ones = 0xffffffff;
  EXPECT_EQ(words(philox({{ones, ones, ones, ones}}, ~std::uint64_t{0})),
            (Words{0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd}));
  EXPECT_EQ(words(philox({{0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344}}, 0x299f31d0a4093822)),
            (Words{0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1}));
}

TEST(Philox, EqualsItsReference) {
  for (std::uint32_t i = 0; i < 1000; ++i) {
    const std::uint32_t a = i * 2654435761u, b = i * 40503u + 7;
    const auto expected = reference::philox({a, b, ~a, i}, {b, a});
    EXPECT_TRUE(test::same_bits(words(philox({{a, b, ~a, i}}, std::uint64_t{a} << 32 | b)), expected));
  }
}

TEST(RandomKey, HashesPurposeNameAndStep) {
  const RandomKey key = random_key(7, "init", "embed.tokens", 3);
  EXPECT_EQ(key.seed, 7u);
  EXPECT_EQ(key.stream, fnv1a64("init:embed.tokens:3"));
  EXPECT_EQ(fnv1a64(""), 0xcbf29ce484222325u);
  EXPECT_EQ(fnv1a64("a"), 0xaf63dc4c8601ec8cu);
}

TEST(RandomBits, CountUpFromTheLowWordOfTheIndex) {
  const RandomKey key{0x299f31d0a4093822, 0x0370734413198a2e};
  EXPECT_EQ(random_bits(key, 0x85a308d3243f6a88), 0x94fdccebd16cfe09);
  std::set<std::uint64_t> seen;
  for (std::uint64_t i = 0; i < 10000; ++i) seen.insert(random_bits(key, i));
  EXPECT_EQ(seen.size(), 10000u);
}

double ulp(double x) { return std::nextafter(std::abs(x), INFINITY) - std::abs(x); }

// Errors below 1.1 units in the last place, against the C library's long double.
TEST(NormalLogarithm, IsWithinAnUlp) {
  double worst = 0;
  const auto check = [&](double x) {
    const long double exact = std::log(static_cast<long double>(x));
    const double error = static_cast<double>(std::abs(natural_log(x) - exact)) / ulp(static_cast<double>(exact));
    test::keep_worst(worst, error);
  };
  for (double x : test::uniform<double>(200000, 1, 0x1p-53, 1)) check(x);
  for (double x : test::uniform<double>(200000, 2, 0.5, 2)) check(x);
  for (int k = 0; k < 53; ++k)
    for (int j = -3; j <= 3; ++j) check((1 + j * 0x1p-52) * std::ldexp(1, -k));
  for (int j = 1; j < 2000; ++j) check(1 - j * 0x1p-53);
  EXPECT_LT(worst, 1.1);
  EXPECT_EQ(natural_log(1), 0);
}

TEST(NormalCosine, IsWithinAnUlpOfTheQuadrantsScale) {
  double worst = 0, worst_sine = 0, worst_cosine = 0;
  constexpr long double two_pi = 2 * std::numbers::pi_v<long double>;
  for (double u : test::uniform<double>(200000, 3, 0, 1)) {
    const long double exact = std::cos(two_pi * u);
    test::keep_worst(worst, static_cast<double>(std::abs(cosine_of_turns(u) - exact)));
  }
  for (double t : test::uniform<double>(200000, 4, -0.7854, 0.7854)) {
    const long double s = std::sin(static_cast<long double>(t)), c = std::cos(static_cast<long double>(t));
    test::keep_worst(worst_sine, static_cast<double>(std::abs(sine_near_zero(t) - s)) / ulp(static_cast<double>(s)));
    test::keep_worst(worst_cosine,
                     static_cast<double>(std::abs(cosine_near_zero(t) - c)) / ulp(static_cast<double>(c)));
  }
  EXPECT_LT(worst, 2.3e-16);
  EXPECT_LT(worst_sine, 1.1);
  EXPECT_LT(worst_cosine, 1.1);
  EXPECT_EQ(cosine_of_turns(0), 1);
  EXPECT_EQ(cosine_of_turns(0.25), 0);
  EXPECT_EQ(cosine_of_turns(0.5), -1);
  EXPECT_EQ(cosine_of_turns(0.75), 0);
}

TEST(FillNormal, EqualsItsReferenceWherever) {
  Device device;
  const RandomKey key = random_key(1234, "init", "layers.0.mlp.up.weight", 0);
  for (std::int64_t n : {1, 7, 2048, 5001}) {
    const std::uint64_t first = n == 7 ? (std::uint64_t{1} << 32) - 3 : 11;
    std::vector<double> expected;
    for (std::int64_t i = 0; i < n; ++i)
      expected.push_back(
          0.02 * static_cast<double>(reference::normal(key.seed, key.stream, first + static_cast<std::uint64_t>(i))));
    const Tensor wide = test::poisoned<double>(device, {n}), narrow = test::poisoned<float>(device, {n});
    fill_normal(device.compute(), wide, key, first, 0.02);
    fill_normal(device.compute(), narrow, key, first, 0.02);
    const auto values = test::on_host<double>(device, wide);
    EXPECT_TRUE(test::near(values, expected, 1e-16));
    EXPECT_TRUE(test::same_bits(test::on_host<float>(device, narrow), std::vector<float>(values.begin(), values.end())))
        << "fp32 is the double, rounded once";
  }
}

TEST(FillNormal, DoesNotDependOnCuts) {
  Device device;
  const RandomKey key = random_key(5, "init", "head.weight", 0);
  const std::int64_t n = 6000;
  const Tensor whole = test::poisoned<float>(device, {n}), pieces = test::poisoned<float>(device, {n});
  fill_normal(device.compute(), whole, key, 0, 1);
  for (std::int64_t begin = 0, size = 1; begin < n; begin += size, size = size * 3 + 1) {
    size = std::min(size, n - begin);
    fill_normal(device.compute(), pieces.flat(begin, size), key, static_cast<std::uint64_t>(begin), 1);
  }
  EXPECT_TRUE(test::same_bits(test::on_host<float>(device, pieces), test::on_host<float>(device, whole)));
}

// Bits that every back end must give, recorded on the host, where the reference confirms the values.
TEST(FillNormal, GivesTheRecordedBits) {
  Device device;
  const Tensor out = test::poisoned<float>(device, {100000});
  fill_normal(device.compute(), out, random_key(1234, "init", "embed.tokens", 0), 0, 0.02);
  std::vector<std::uint64_t> bits;
  for (float x : test::on_host<float>(device, out)) bits.push_back(std::bit_cast<std::uint32_t>(x));
  EXPECT_EQ(reference::digest(bits, 0), 0x2147cc735ac12c1fu);
}

TEST(FillNormal, IsNormal) {
  Device device;
  const std::int64_t n = 1 << 20;
  const Tensor out = test::poisoned<double>(device, {n});
  fill_normal(device.compute(), out, random_key(42, "test", "moments", 0), 0, 1);
  auto x = test::on_host<double>(device, out);
  double m1 = 0, m2 = 0, m3 = 0, m4 = 0, neighbours = 0;
  for (std::size_t i = 0; i < x.size(); ++i) {
    m1 += x[i];
    m2 += x[i] * x[i];
    m3 += std::pow(x[i], 3);
    m4 += std::pow(x[i], 4);
    neighbours += x[i] * x[(i + 1) % x.size()];
  }
  // Five standard deviations of each moment's own estimate.
  const double scale = static_cast<double>(n), five = 5 / std::sqrt(scale);
  EXPECT_NEAR(m1 / scale, 0, five);
  EXPECT_NEAR(m2 / scale, 1, five * std::sqrt(2));
  EXPECT_NEAR(m3 / scale, 0, five * std::sqrt(15));
  EXPECT_NEAR(m4 / scale, 3, five * std::sqrt(96));
  EXPECT_NEAR(neighbours / scale, 0, five);
  // Kolmogorov-Smirnov at the 1e-4 level: sqrt(n) D < 2.23.
  std::ranges::sort(x);
  double distance = 0;
  for (std::size_t i = 0; i < x.size(); ++i) {
    const double cdf = 0.5 * std::erfc(-x[i] / std::numbers::sqrt2), below = static_cast<double>(i) / scale;
    distance = std::max({distance, cdf - below, below + 1 / scale - cdf});
  }
  EXPECT_LT(distance * std::sqrt(scale), 2.23);
}

template <class T>
class FillTest : public ::testing::Test {};
using Reals = ::testing::Types<double, float, bf16>;
TYPED_TEST_SUITE(FillTest, Reals);

TYPED_TEST(FillTest, WritesEveryElementAndNoOther) {
  Device device;
  for (std::int64_t n : {0, 1, 77, 4097}) {
    const Tensor all = test::poisoned<TypeParam>(device, {n + 2});
    fill(device.compute(), all.flat(1, n), 0.3);
    const auto values = test::on_host<TypeParam>(device, all);
    const TypeParam expected = std::is_same_v<TypeParam, double> ? TypeParam(0.3) : TypeParam(0.3f);
    EXPECT_TRUE(std::isnan(static_cast<double>(values.front())) && std::isnan(static_cast<double>(values.back())));
    for (std::size_t i = 1; i + 1 < values.size(); ++i) ASSERT_TRUE(values[i] == expected) << i;
  }
}
TEST(Fill, KeepsADoubleAsItIs) {
  Device device;
  const Tensor t = test::poisoned<double>(device, {3});
  fill(device.compute(), t, 0.1);
  EXPECT_TRUE(test::same_bits(test::on_host<double>(device, t), std::vector<double>{0.1, 0.1, 0.1}));
}

TEST(Random, RefusesOtherTypes) {
  Device device;
  const Tensor t = test::poisoned<std::int32_t>(device, {3});
  EXPECT_THROW(fill_normal(device.compute(), t, {}, 0, 1), Error);
  EXPECT_THROW(fill(device.compute(), t, 1), Error);
}

TEST(Random, RunsDry) {
  Device device(Device::Kind::measuring);
  const Tensor t = device.allocate(Category::masters, DType::f32, {1000});
  fill_normal(device.compute(), t, {}, 0, 1);
  fill(device.compute(), t, 1);
  EXPECT_EQ(device.compute().launches(), 2);
}

}  // namespace
}  // namespace tessera
