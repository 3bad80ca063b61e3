#include "kernels/digest/digest.hpp"

#include <gtest/gtest.h>

#include <bit>
#include <cstring>

#include "tests/reference/digest.hpp"
#include "tests/support/on_device.hpp"
#include "tests/support/shown.hpp"

namespace tessera {
namespace {

template <class T>
std::vector<T> any_bits(std::int64_t n, std::uint64_t seed) {
  std::mt19937_64 random(seed);
  std::vector<T> values(static_cast<std::size_t>(n));
  for (T& v : values) {
    const std::uint64_t bits = random();
    std::memcpy(static_cast<void*>(&v), &bits, sizeof v);
  }
  return values;
}

template <class T>
std::vector<std::uint64_t> widened(const std::vector<T>& values) {
  std::vector<std::uint64_t> bits(values.size(), 0);
  for (std::size_t i = 0; i < values.size(); ++i) std::memcpy(&bits[i], &values[i], sizeof(T));
  return bits;
}

class Sum {
 public:
  explicit Sum(Device& device) : device_(device), word_(test::on_device(device, std::vector<std::uint64_t>{0})) {}
  operator std::uint64_t*() const { return word_.as<std::uint64_t>(); }
  std::uint64_t value() const { return test::on_host<std::uint64_t>(device_, word_)[0]; }

 private:
  Device& device_;
  Tensor word_;
};

template <class T>
class DigestTest : public ::testing::Test {};
using Stored =
    ::testing::Types<double, float, bf16, std::uint8_t, std::uint16_t, std::int32_t, std::int64_t, std::uint64_t>;
TYPED_TEST_SUITE(DigestTest, Stored);

TYPED_TEST(DigestTest, EqualsItsReferenceForAnyBits) {
  Device device;
  for (std::int64_t n : {1, 15, 4096, 10007}) {
    const auto values = any_bits<TypeParam>(n, 9);
    const Tensor t = test::on_device(device, values);
    for (std::uint64_t first : {std::uint64_t{0}, std::uint64_t{123456789012}}) {
      Sum sum(device);
      digest(device.compute(), sum, t, first);
      EXPECT_EQ(sum.value(), reference::digest(widened(values), first)) << n;
    }
  }
}

TYPED_TEST(DigestTest, AddsUpFromPiecesInAnyOrder) {
  Device device;
  const std::int64_t n = 9001;
  const auto values = any_bits<TypeParam>(n, 10);
  const Tensor t = test::on_device(device, values);
  Sum sum(device);
  for (std::int64_t begin : {5000, 0, 1, 4097}) {
    const std::int64_t end = begin == 0 ? 1 : begin == 1 ? 4097 : begin == 4097 ? 5000 : n;
    digest(device.compute(), sum, t.flat(begin, end - begin), static_cast<std::uint64_t>(begin));
  }
  EXPECT_EQ(sum.value(), reference::digest(widened(values), 0));
}

TEST(Digest, OfNothingAddsNothing) {
  Device device;
  Sum sum(device);
  digest(device.compute(), sum, test::on_device(device, std::vector<float>{}), 5);
  EXPECT_EQ(sum.value(), 0u);
}

TEST(Digest, SeesEveryBitAndEveryExchange) {
  Device device;
  auto values = any_bits<float>(5000, 11);
  const auto of = [&](const std::vector<float>& v) {
    Sum sum(device);
    digest(device.compute(), sum, test::on_device(device, v), 0);
    return sum.value();
  };
  const std::uint64_t whole = of(values);
  for (std::size_t i : {0u, 4095u, 4096u, 4999u}) {
    SCOPED_TRACE(test::shown(i));
    auto flipped = values;
    flipped[i] = std::bit_cast<float>(std::bit_cast<std::uint32_t>(flipped[i]) ^ 1u);
    EXPECT_NE(of(flipped), whole);
  }
  std::swap(values[17], values[4500]);
  EXPECT_NE(of(values), whole);
}

// The digest of io/checkpoint/FORMAT.md for 1.0f, -0.0f and the quiet NaN, computed in another language.
TEST(Digest, GivesTheDocumentedNumber) {
  Device device;
  Sum sum(device);
  digest(device.compute(), sum,
         test::on_device(device, std::vector<float>{1.0f, -0.0f, std::bit_cast<float>(0x7FC00000u)}), 0);
  EXPECT_EQ(sum.value(), 0x04a3c26c994b997cu);
}

TEST(DigestRows, CountsTheValidColumnsOfItsRows) {
  Device device;
  for (std::int64_t columns : {1, 16, 130, 5000}) {
    SCOPED_TRACE(test::shown(columns));
    const std::int64_t rows = 37, valid = columns == 1 ? 1 : columns - 3;
    const std::uint64_t first_row = 1000;
    const auto values = any_bits<bf16>(rows * columns, 12);
    std::vector<std::uint64_t> kept;
    for (std::int64_t r = 0; r < rows; ++r)
      for (std::int64_t c = 0; c < valid; ++c) kept.push_back(values[static_cast<std::size_t>(r * columns + c)].bits);
    const Tensor t = test::on_device(device, Shape{rows, columns}, values);
    Sum whole(device), halves(device);
    digest_rows(device.compute(), whole, t, valid, first_row);
    digest_rows(device.compute(), halves, t.row_range(20, 17), valid, first_row + 20);
    digest_rows(device.compute(), halves, t.row_range(0, 20), valid, first_row);
    const std::uint64_t expected = reference::digest(kept, first_row * static_cast<std::uint64_t>(valid));
    EXPECT_EQ(whole.value(), expected);
    EXPECT_EQ(halves.value(), expected);
  }
}

TEST(DigestRows, RefusesMoreValidColumnsThanThereAre) {
  Device device;
  Sum sum(device);
  const Tensor t = test::poisoned<float>(device, {4, 8});
  EXPECT_THROW(digest_rows(device.compute(), sum, t, 9, 0), Error);
  EXPECT_THROW(digest_rows(device.compute(), sum, t.view({32}), 8, 0), Error);
  digest_rows(device.compute(), sum, t, 0, 0);
  EXPECT_EQ(sum.value(), 0u);
}

}  // namespace
}  // namespace tessera
