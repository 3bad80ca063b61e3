#include "kernels/reduce/reduce.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>

#include "tests/reference/reduce.hpp"
#include "tests/support/compare.hpp"
#include "tests/support/on_device.hpp"
#include "tests/support/shown.hpp"

namespace tessera {
namespace {

constexpr float nan = std::numeric_limits<float>::quiet_NaN(), inf = std::numeric_limits<float>::infinity();
constexpr float smallest = std::numeric_limits<float>::denorm_min(), largest = std::numeric_limits<float>::max();
using Words = std::vector<std::int64_t>;

/// The parts [parts, n] as rank `rank` has them.
template <class T>
SumTerms parts_of(Device& device, const std::vector<T>& values, std::int64_t n, std::int64_t rank) {
  const auto own = values.begin() + rank * n;
  std::vector<T> others(values.begin(), own);
  others.insert(others.end(), own + n, values.end());
  return {test::on_device(device, Shape{n}, std::vector<T>(own, own + n)),
          test::on_device(device, Shape{std::ssize(others) / n, n}, others), rank};
}

template <class T>
class SumInOrder : public ::testing::Test {};
using Sums = ::testing::Types<double, float>;
TYPED_TEST_SUITE(SumInOrder, Sums);

TYPED_TEST(SumInOrder, EqualsItsReferenceToTheBit) {
  Device device;
  for (std::int64_t parts : {1, 2, 3, 5, 8}) {
    for (std::int64_t n : {1, 33, 4096, 9001}) {
      const auto values = test::uniform<TypeParam>(parts * n, 1);
      const auto expected = reference::sum_in_order(std::span<const TypeParam>(values), parts);
      for (std::int64_t rank = 0; rank < parts; ++rank) {
        const SumTerms in = parts_of(device, values, n, rank);
        const Tensor out = test::poisoned<TypeParam>(device, {n});
        sum_in_order(device.compute(), out, in);
        EXPECT_TRUE(test::same_bits(test::on_host<TypeParam>(device, out), expected));
        const auto before = test::uniform<TypeParam>(n, 2);
        const Tensor sums = test::on_device(device, Shape{n}, before);
        add_in_order(device.compute(), sums, in);
        EXPECT_TRUE(test::same_bits(test::on_host<TypeParam>(device, sums),
                                    reference::add_in_order(std::span<const TypeParam>(before), values, parts)));
        sum_in_order(device.compute(), in.own.values, in);
        EXPECT_TRUE(test::same_bits(test::on_host<TypeParam>(device, in.own.values), expected)) << "in place";
      }
    }
  }
}

// The idle ranks' parts are NaN: one that is read shows.
TYPED_TEST(SumInOrder, LeavesIdleRanksOut) {
  Device device;
  constexpr std::int64_t n = 5, parts = 4;
  for (std::int64_t idle = 1; idle < parts; ++idle) {
    auto values = test::uniform<TypeParam>((parts - idle) * n, 3);
    values.front() = -0.0;
    const auto counted = values;
    values.resize(parts * n, std::numeric_limits<TypeParam>::quiet_NaN());
    for (std::int64_t rank = 0; rank < parts; ++rank) {
      SumTerms in = parts_of(device, values, n, rank);
      in.idle = idle;
      const Tensor out = test::poisoned<TypeParam>(device, {n});
      sum_in_order(device.compute(), out, in);
      EXPECT_TRUE(test::same_bits(test::on_host<TypeParam>(device, out),
                                  reference::sum_in_order(std::span<const TypeParam>(counted), parts - idle)));
      const std::vector<TypeParam> before(n, -0.0);
      const Tensor sums = test::on_device(device, Shape{n}, before);
      add_in_order(device.compute(), sums, in);
      EXPECT_TRUE(test::same_bits(test::on_host<TypeParam>(device, sums),
                                  reference::add_in_order(std::span<const TypeParam>(before), counted, parts - idle)));
    }
  }
}

TEST(SumInOrder, KeepsTheOrder) {
  Device device;
  const std::vector<float> values{1e8f, 1, -1e8f, 1e8f, 1, -1e8f};
  for (std::int64_t rank : {0, 1, 2}) {
    SCOPED_TRACE(test::shown(rank));
    const Tensor out = test::poisoned<float>(device, {2});
    sum_in_order(device.compute(), out, parts_of(device, values, 2, rank));
    EXPECT_TRUE(test::same_bits(test::on_host<float>(device, out), std::vector<float>{1, (1 + 1e8f) - 1e8f}));
    const Tensor sum = test::on_device(device, std::vector<float>{-1e8f, 1e8f});
    add_in_order(device.compute(), sum, parts_of(device, values, 2, rank));
    EXPECT_TRUE(test::same_bits(test::on_host<float>(device, sum),
                                std::vector<float>{((-1e8f + 1e8f) - 1e8f) + 1, ((1e8f + 1) + 1e8f) - 1e8f}));
  }
}

TEST(SumInOrder, RefusesWhatDoesNotFit) {
  Device device;
  const SumTerms in{test::poisoned<float>(device, {4}), test::poisoned<float>(device, {2, 4}), 2};
  const Tensor out = test::poisoned<float>(device, {4});
  EXPECT_THROW(sum_in_order(device.compute(), test::poisoned<float>(device, {5}), in), Error);
  EXPECT_THROW(sum_in_order(device.compute(), test::poisoned<double>(device, {4}), in), Error);
  EXPECT_THROW(sum_in_order(device.compute(), out, {in.own, in.others, 3}), Error);
  EXPECT_THROW(sum_in_order(device.compute(), out, {in.own, in.others, 2, 3}), Error) << "no part counts";
  EXPECT_THROW(sum_in_order(device.compute(), out, {in.own.values.flat(0, 3), in.others, 2}), Error);
  EXPECT_NO_THROW(sum_in_order(device.compute(), out.flat(0, 0),
                               {in.own.values.flat(0, 0), test::poisoned<float>(device, {2, 0}), 0}));
}

Tensor no_words(Device& device) { return test::on_device(device, Words(ExactSum::words, 0)); }

template <class T>
Words words_of(Device& device, const std::vector<T>& values) {
  const Tensor words = no_words(device);
  const Tensor x = test::on_device(device, values);
  add_squares(device.compute(), words, {&x, 1});
  return test::on_host<std::int64_t>(device, words);
}

ClipResult clip_of(Device& device, const Words& words, float clip, float limit = inf) {
  const Tensor result = device.allocate(Category::batch, DType::u8, {std::int64_t{sizeof(ClipResult)}});
  const Tensor most = test::on_device(device, std::vector{limit});
  clip_from_squares(device.compute(), static_cast<ClipResult*>(result.data), test::on_device(device, words), clip,
                    most.as<float>());
  ClipResult out;
  device.download(device.compute(), &out, result);
  return out;
}
float norm_of(Device& device, const std::vector<float>& values) {
  return clip_of(device, words_of(device, values), 0).norm;
}

std::uint32_t bits(float x) { return std::bit_cast<std::uint32_t>(x); }

// Values as of gradients, numbers of every exponent, and both ends of the range.
std::vector<std::vector<float>> samples() {
  std::vector<std::vector<float>> all;
  for (std::int64_t n : {1, 2, 100, 4097}) all.push_back(test::uniform<float>(n, static_cast<std::uint64_t>(n)));
  std::mt19937 random(3);
  for (int kind = 0; kind < 3; ++kind) {
    std::vector<float> values(3001);
    for (float& v : values) {
      const auto any = static_cast<std::uint32_t>(random());
      const std::uint32_t mask = kind == 0 ? 0x807FFFFFu : 0xBFFFFFFFu;  // denormals only; exponents below 128
      v = std::bit_cast<float>(kind == 2 ? (any & 0x80FFFFFFu) | 0x7E000000u : any & mask);
    }
    all.push_back(std::move(values));
  }
  all.push_back({smallest});
  all.push_back(std::vector<float>(5, smallest));
  all.push_back({largest});
  all.push_back({1e-30f, 1e30f});
  all.push_back({0, -0.0f});
  return all;
}

TEST(AddSquares, GivesTheCorrectlyRoundedNorm) {
  Device device;
  for (const auto& values : samples()) {
    const float expected = reference::norm(values);
    EXPECT_EQ(bits(norm_of(device, values)), bits(expected)) << values.size() << " values, norm " << expected;
  }
}

TEST(AddSquares, RoundsTiesAndNearTiesOnce) {
  Device device;
  std::mt19937 random(5);
  for (int round = 0; round < 300; ++round) {
    // (a + half an ulp)^2 = a^2 + a ulp + ulp^2/4 as squares of floats: 4 squares reach any such number closely.
    const float a = std::bit_cast<float>((static_cast<std::uint32_t>(random()) & 0x007FFFFFu) | 0x3F800000u);
    std::vector<float> values{a, std::sqrt(a * 0x1p-23f)};
    for (int extra = 0; extra < round % 4; ++extra) values.push_back(std::ldexp(a, -12 * (extra + 2)));
    EXPECT_EQ(bits(norm_of(device, values)), bits(reference::norm(values))) << round;
  }
  // An exact tie: 3^2 + 4^2 scaled so that 5 falls half way between two denormals' neighbours.
  EXPECT_EQ(bits(norm_of(device, {3 * smallest, 4 * smallest})), bits(5 * smallest));
  const float step = 0x1p-12f;  // (2^12 + 2^-12)^2 = 2^24 + 2 + 2^-24: root needs 25 bits, the tie goes to the even
  EXPECT_EQ(norm_of(device, {4096, 1, 1, step}), 4096);
  EXPECT_EQ(norm_of(device, {4096, 1, 1, step, smallest}), std::nextafter(4096.0f, 5000.0f)) << "one denormal tips it";
}

TEST(AddSquares, DoesNotDependOnOrder) {
  Device device;
  std::mt19937 random(7);
  for (auto values : samples()) {
    const Words first = words_of(device, values);
    for (int round = 0; round < 3; ++round) {
      std::ranges::shuffle(values, random);
      EXPECT_TRUE(test::same_bits(words_of(device, values), first));
    }
  }
}

TEST(AddSquares, AddsUpOverCallsAndRanks) {
  Device device;
  std::mt19937 random(8);
  for (const auto& values : samples()) {
    const Words whole = words_of(device, values);
    const Tensor calls = no_words(device), t = test::on_device(device, values);
    for (std::int64_t begin = 0; begin < t.elements();) {
      const std::int64_t size = std::min<std::int64_t>(t.elements() - begin, random() % 2000);
      const Tensor part = t.flat(begin, size);
      add_squares(device.compute(), calls, {&part, 1});
      begin += size;
    }
    EXPECT_TRUE(test::same_bits(test::on_host<std::int64_t>(device, calls), whole));
    for (std::int64_t ranks = 1; ranks <= 8; ++ranks) {
      Words sum(ExactSum::words, 0);
      for (std::int64_t r = 0; r < ranks; ++r) {
        const auto n = static_cast<std::int64_t>(values.size());
        const auto part =
            words_of(device, std::vector<float>(values.begin() + r * n / ranks, values.begin() + (r + 1) * n / ranks));
        for (std::size_t i = 0; i < sum.size(); ++i) sum[i] += part[i];
      }
      EXPECT_EQ(bits(clip_of(device, sum, 0).norm), bits(clip_of(device, whole, 0).norm)) << ranks << " ranks";
    }
  }
}

TEST(AddSquares, TakesManyTensorsAtOnce) {
  Device device;
  // More tensors than a launch takes, none at all, and empty ones among others, some at odd addresses.
  const auto values = test::uniform<float>(200000, 9, -3, 3);
  const Tensor all = test::on_device(device, values);
  for (const std::int64_t step : {1, 4}) {
    SCOPED_TRACE(test::shown(step));
    std::vector<Tensor> parts;
    std::int64_t begin = 0;
    for (std::int64_t i = 0; i < 150; ++i) {
      const std::int64_t size = i % 7 == 0 ? 0 : std::min(step * (i * i % 2000), all.elements() - begin);
      parts.push_back(all.flat(begin, size));
      begin += size;
    }
    const Tensor words = no_words(device);
    add_squares(device.compute(), words, parts);
    EXPECT_TRUE(test::same_bits(test::on_host<std::int64_t>(device, words),
                                words_of(device, std::vector<float>(values.begin(), values.begin() + begin))));
    const Tensor none = no_words(device);
    add_squares(device.compute(), none, {});
    EXPECT_TRUE(test::same_bits(test::on_host<std::int64_t>(device, none), Words(ExactSum::words, 0)));
  }
}

TEST(AddSquares, HoldsSumsFarBeyondOneNumber) {
  Device device;
  // 2^20 times the largest square, added as integers 2^10 times, as by 2^10 ranks.
  const Words part = words_of(device, std::vector<float>(1 << 10, 0x1p120f));
  Words sum(ExactSum::words, 0);
  for (int r = 0; r < 1 << 10; ++r)
    for (std::size_t i = 0; i < sum.size(); ++i) sum[i] += part[i];
  EXPECT_EQ(clip_of(device, sum, 0).norm, inf) << "2^10 2^120 is no float";
  const Words lower = words_of(device, std::vector<float>(1 << 12, 0x1p100f));
  EXPECT_EQ(clip_of(device, lower, 0).norm, 0x1p106f);
}

TEST(AddSquares, CountsWhatIsNotFiniteApart) {
  Device device;
  auto values = test::uniform<float>(5000, 4);
  const Words clean = words_of(device, values);
  EXPECT_EQ(clean.back(), 0);
  values.insert(values.begin() + 17, nan);
  values.insert(values.begin() + 4999, inf);
  values.push_back(-inf);
  Words words = words_of(device, values);
  EXPECT_EQ(words.back(), 3);
  words.back() = 0;
  EXPECT_TRUE(test::same_bits(words, clean));
}

TEST(AddSquares, RoundsDoublesToFloatFirst) {
  Device device;
  const auto values = test::uniform<double>(5000, 6);
  EXPECT_TRUE(
      test::same_bits(words_of(device, values), words_of(device, std::vector<float>(values.begin(), values.end()))));
  EXPECT_EQ(words_of(device, std::vector<double>{1e300, 1}).back(), 1) << "an fp32 overflow is not finite";
}

TEST(AddSquares, OfNothingAddsNothing) {
  Device device;
  EXPECT_TRUE(test::same_bits(words_of(device, std::vector<float>{}), Words(ExactSum::words, 0)));
}

void expect_same(const ClipResult& actual, const ClipResult& expected) {
  EXPECT_EQ(bits(actual.norm), bits(expected.norm));
  EXPECT_TRUE(actual.coefficient == expected.coefficient ||
              (std::isnan(actual.coefficient) && std::isnan(expected.coefficient)))
      << actual.coefficient << " instead of " << expected.coefficient;
  EXPECT_EQ(actual.skip, expected.skip);
}

TEST(ClipFromSquares, EqualsItsReference) {
  Device device;
  auto cases = samples();
  cases.push_back({1, nan});
  cases.push_back({inf});
  cases.push_back(std::vector<float>(2, largest));
  for (const auto& values : cases)
    for (float clip : {0.0f, 1.0f, 0.3f, 1e6f})
      for (float limit : {inf, 0.5f, 1e6f})
        expect_same(clip_of(device, words_of(device, values), clip, limit), reference::clip(values, clip, limit));
}

TEST(ClipFromSquares, ScalesDownOnlyAndSaysWhatToSkip) {
  Device device;
  EXPECT_EQ(clip_of(device, words_of(device, std::vector<float>{3, 4}), 1).coefficient, 1.0f / (5.0f + 1e-6f));
  EXPECT_EQ(clip_of(device, words_of(device, std::vector<float>{3, 4}), 10).coefficient, 1);
  EXPECT_EQ(clip_of(device, words_of(device, std::vector<float>{3, 4}), 0).coefficient, 1);
  EXPECT_EQ(clip_of(device, words_of(device, std::vector<float>{3, 4}), 1).skip, 0);
  EXPECT_EQ(clip_of(device, words_of(device, std::vector<float>{3, nan}), 1).skip, ClipResult::not_finite);
  EXPECT_EQ(clip_of(device, words_of(device, std::vector<float>{3, nan}), 1, 2).skip, ClipResult::not_finite);
  EXPECT_EQ(clip_of(device, words_of(device, std::vector<float>{3, 4}), 1, 5).skip, 0) << "at the limit";
  EXPECT_EQ(clip_of(device, words_of(device, std::vector<float>{3, 4}), 1, 4.9f).skip, ClipResult::spike);
  EXPECT_EQ(clip_of(device, words_of(device, std::vector<float>{largest, largest}), 1).skip, 1) << "the norm overflows";
}

}  // namespace
}  // namespace tessera
