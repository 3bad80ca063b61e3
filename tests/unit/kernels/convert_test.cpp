#include "kernels/convert/convert.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <bit>

#include "tests/reference/convert.hpp"
#include "tests/support/compare.hpp"
#include "tests/support/on_device.hpp"
#include "tests/support/shown.hpp"

namespace tessera {
namespace {

using test::in_double, test::near, test::on_device, test::on_host, test::poisoned, test::uniform;

// Every upper half of an fp32, with the lower halves around the point at which rounding changes direction.
std::vector<float> around_every_bf16() {
  std::vector<float> values;
  for (std::uint32_t upper = 0; upper < 0x10000; ++upper)
    for (std::uint32_t lower : {0u, 1u, 0x7FFFu, 0x8000u, 0x8001u, 0xFFFFu})
      values.push_back(std::bit_cast<float>(upper << 16 | lower));
  return values;
}

TEST(Convert, RoundsEveryFp32ToTheNearestBf16) {
  Device device;
  const auto values = around_every_bf16();
  const Tensor from = on_device(device, values), to = poisoned<bf16>(device, from.shape);
  convert(device.compute(), to, from);
  std::vector<bf16> wanted;
  for (float x : values) wanted.push_back(reference::nearest_bf16(x));
  EXPECT_TRUE(test::same_bits(on_host<bf16>(device, to), wanted));
}

TEST(Convert, WidensExactly) {
  Device device;
  std::vector<bf16> values(0x10000);
  for (std::size_t i = 0; i < values.size(); ++i) values[i].bits = static_cast<std::uint16_t>(i);
  const Tensor from = on_device(device, values), to = poisoned<float>(device, from.shape);
  convert(device.compute(), to, from);
  std::vector<float> wanted;
  for (std::size_t i = 0; i < values.size(); ++i)
    wanted.push_back(std::bit_cast<float>(static_cast<std::uint32_t>(i) << 16));
  EXPECT_TRUE(test::same_bits(on_host<float>(device, to), wanted));
}

template <class T> class ConvertFrom : public ::testing::Test {};
TYPED_TEST_SUITE(ConvertFrom, test::Reals);

TYPED_TEST(ConvertFrom, TakesEveryRealType) {
  Device device;
  for (std::int64_t n : {1, 33, 9001}) {
    SCOPED_TRACE(test::shown(n));
    const auto values = uniform<TypeParam>(n, 1, -1000, 1000);
    const Tensor from = on_device(device, values);
    const Tensor wide = poisoned<double>(device, {n}), middle = poisoned<float>(device, {n});
    const Tensor narrow = poisoned<bf16>(device, {n});
    convert(device.compute(), wide, from);
    convert(device.compute(), middle, from);
    convert(device.compute(), narrow, from);
    std::vector<float> single;
    std::vector<bf16> half;
    for (double x : in_double(values)) {
      single.push_back(static_cast<float>(x));
      half.push_back(reference::nearest_bf16(static_cast<float>(x)));
    }
    EXPECT_TRUE(test::same_bits(on_host<double>(device, wide), in_double(values)));
    EXPECT_TRUE(test::same_bits(on_host<float>(device, middle), single));
    EXPECT_TRUE(test::same_bits(on_host<bf16>(device, narrow), half));
  }
}

TEST(Copy, MovesBytesWhateverTheType) {
  Device device;
  const auto values = uniform<float>(1001, 2);
  const Tensor from = on_device(device, values), to = poisoned<float>(device, {1001});
  copy(device.compute(), to.flat(1, 999), from.flat(2, 999));
  std::vector<float> inside = on_host<float>(device, to);
  EXPECT_TRUE(test::same_bits(std::vector(inside.begin() + 1, inside.end() - 1),
                              std::vector(values.begin() + 2, values.end())));
  EXPECT_TRUE(test::all_nan(std::vector{inside.front(), inside.back()}));
  const Tensor bytes = poisoned(device, DType::u8, {4004});
  copy(device.compute(), bytes, from);
  EXPECT_TRUE(test::same_bits(on_host<float>(device, {bytes.data, DType::f32, Shape{1001}}), values));
}

// Ranges that are whole words of 16 bytes and ranges that are not.
TEST(Clear, ZeroesItsRangeAlone) {
  Device device;
  for (DType type : {DType::f64, DType::f32, DType::bf16, DType::u8, DType::i64})
    for (auto [begin, count] : {std::pair<std::int64_t, std::int64_t>{1, 9001}, {16, 8960}}) {
      const Tensor whole = poisoned(device, type, {9003});
      clear(device.compute(), whole.flat(begin, count));
      const auto bytes = on_host<std::uint8_t>(device, {whole.data, DType::u8, Shape{whole.bytes()}});
      std::vector<std::uint8_t> wanted(bytes.size(), 0xFF);
      std::fill_n(wanted.begin() + begin * size_of(type), count * size_of(type), std::uint8_t{0});
      EXPECT_TRUE(test::same_bits(bytes, wanted)) << name_of(type) << " from " << begin;
    }
}

TEST(ConvertChecks, NothingOfNothingAndRefusals) {
  Device device;
  Stream& s = device.compute();
  const Tensor none = poisoned<float>(device, {0}), two = poisoned<float>(device, {2});
  const Tensor three = poisoned<float>(device, {3});
  EXPECT_NO_THROW(convert(s, none, none));
  EXPECT_NO_THROW(copy(s, none, none));
  EXPECT_NO_THROW(clear(s, none));
  EXPECT_THROW(convert(s, two, three), Error);
  EXPECT_THROW(convert(s, two, poisoned(device, DType::i32, {2})), Error);
  EXPECT_THROW(copy(s, two, three), Error);
}

template <class To> class ConvertPairs : public ::testing::Test {};
TYPED_TEST_SUITE(ConvertPairs, test::Reals);

// Every range of a table whose pairs are shorter than, longer than and as long as a chunk; one is empty.
TYPED_TEST(ConvertPairs, EqualsConvertingEachAndTouchesNoOther) {
  Device device;
  std::vector<ConvertTable::Pair> pairs;
  std::vector<std::vector<TypeParam>> wanted;
  for (std::int64_t n : {1, 4096, 0, 9001, 33, 0, 8192, 2}) {
    const Tensor from = on_device(device, uniform<float>(n, static_cast<std::uint64_t>(n) + 7, -1000, 1000));
    const Tensor one = poisoned<TypeParam>(device, {n});
    convert(device.compute(), one, from);
    wanted.push_back(on_host<TypeParam>(device, one));
    pairs.push_back({poisoned<TypeParam>(device, {n}), from});
  }
  const std::vector<TypeParam> poison = on_host<TypeParam>(device, poisoned<TypeParam>(device, {9001}));
  ConvertTable table(pairs);
  EXPECT_THROW(convert(device.compute(), table, 0, 1), Error) << "not bound";
  table.bind(device.allocate(Category::staging, DType::u8, {table.bytes()}));
  device.upload(device.compute(), table);
  for (int first = 0; first <= table.pairs(); ++first)
    for (int last = first; last <= table.pairs(); ++last) {
      const std::int64_t before = device.compute().launches();
      convert(device.compute(), table, first, last);
      EXPECT_EQ(device.compute().launches() - before, first < last ? 1 : 0);
      for (int i = 0; i < table.pairs(); ++i) {
        const auto at = static_cast<std::size_t>(i);
        std::vector<TypeParam> expected = wanted[at];
        if (i < first || i >= last) expected.assign(poison.begin(), poison.begin() + std::ssize(wanted[at]));
        const Tensor& to = pairs[at].to;
        if (!expected.empty()) {
          EXPECT_TRUE(test::same_bits(on_host<TypeParam>(device, to), expected)) << i;
        }
        device.upload(device.compute(), to, poison.data());
      }
    }
}

TEST(ConvertTable, RefusesWhatDoesNotFit) {
  Device device;
  using Pairs = std::vector<ConvertTable::Pair>;
  const Tensor a = poisoned<float>(device, {4}), b = poisoned<float>(device, {5}), c = poisoned<bf16>(device, {4});
  EXPECT_THROW(ConvertTable(Pairs{{a, b}}), Error);
  EXPECT_THROW(ConvertTable(Pairs{{a, a}, {c, a}}), Error);
  EXPECT_THROW(convert(device.compute(), ConvertTable(Pairs{{c, a}}), 0, 2), Error);
}

}  // namespace
}  // namespace tessera
