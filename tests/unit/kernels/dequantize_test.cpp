#include <gtest/gtest.h>

#include "kernels/base/runtime.hpp"
#include "kernels/quantize/quantize.hpp"
#include "tests/reference/quantize.hpp"
#include "tests/support/compare.hpp"
#include "tests/support/every_format.hpp"
#include "tests/support/quantized.hpp"
#include "tests/support/shown.hpp"

namespace tessera {
namespace {

using formats::Matrix;
using test::GuardedCopy;

template <class F>
struct Dequantize : ::testing::Test {
  Device device;
};
TYPED_TEST_SUITE(Dequantize, test::EveryFormat);

// Comparable bits: which bits of a NaN a product keeps depends on the machine, so all NaN are made equal.
template <class T>
::testing::AssertionResult same_values(const std::vector<T>& actual, const std::vector<T>& expected) {
  if (actual.empty() || actual.size() != expected.size()) return ::testing::AssertionFailure() << "sizes";
  for (std::size_t i = 0; i < actual.size(); ++i) {
    const auto a = static_cast<float>(actual[i]), e = static_cast<float>(expected[i]);
    if (std::isnan(e) ? !std::isnan(a) : std::bit_cast<std::uint32_t>(a) != std::bit_cast<std::uint32_t>(e))
      return ::testing::AssertionFailure() << "element " << i << " is " << a << " instead of " << e;
  }
  return ::testing::AssertionSuccess();
}

// A quantized matrix of two members and the expected decoded values, in stored order.
template <class F, class T>
struct Made {
  Matrix matrix;
  GuardedCopy<F> row, column;
  std::vector<T> expected[2][2];  // [side][tensor, in stored order; factor, in the order of the matrix: 0]
  QuantizedMatrix item;

  Made(Device& device, Matrix m, std::uint64_t seed)
      : matrix(m), row(device, Side::rowwise, m, 2), column(device, Side::columnwise, m, 2) {
    const auto x = test::wild(2 * m.elements(), seed, true);
    item.matrix = m;
    item.members = 2;
    item.values = test::on_device(device, {2 * m.elements()}, x);
    item.rowwise = row.copy();
    item.columnwise = column.copy();
    if (F::columnwise == formats::Columnwise::shared) item.columnwise.data = item.rowwise.data;
    quantize(device.compute(), test::placed(device, formats::id_of<F>, {item}));
    for (std::int64_t e = 0; e < 2; ++e)
      for (Side side : {Side::rowwise, Side::columnwise}) {
        const auto copy = reference::quantize<F>(
            side, m, reference::rounded_to_bf16({x.begin() + e * m.elements(), x.begin() + (e + 1) * m.elements()}));
        append(side, 1, reference::dequantize<F>(side, m, copy, F::step));
        append(side, 0, reference::dequantize<F>(side, m, copy, F::factor_step));
      }
    item.values = test::poisoned<T>(device, {2 * m.elements()});
  }
  void append(Side side, int which, const std::vector<float>& values) {
    auto& list = expected[static_cast<int>(side)][which];
    std::vector<T> stored(values.size());
    for (std::int64_t r = 0; r < matrix.rows; ++r)
      for (std::int64_t c = 0; c < matrix.columns; ++c)
        stored[static_cast<std::size_t>(which == 0 ? r * matrix.columns + c
                                                   : reference::element_place<F>(side, matrix, r, c))] =
            T(values[static_cast<std::size_t>(r * matrix.columns + c)]);
    list.insert(list.end(), stored.begin(), stored.end());
  }
};

template <class F, class T>
void compare(Device& device) {
  for (const Matrix m : {Matrix{160, 96}, Matrix{32, 288}, Matrix{128, 128}}) {
    const Made<F, T> made(device, m, 5);
    const QuantizeTable table = test::placed(device, formats::id_of<F>, {made.item});
    for (Side side : {Side::rowwise, Side::columnwise}) {
      dequantize(device.compute(), table, side);
      EXPECT_TRUE(same_values(test::on_host<T>(device, made.item.values), made.expected[static_cast<int>(side)][1]))
          << F::name << name_of(side);
      if constexpr (!std::is_same_v<T, bf16>) continue;
      decode_factors(device.compute(), table, side);
      EXPECT_TRUE(same_values(test::on_host<T>(device, made.item.values), made.expected[static_cast<int>(side)][0]))
          << F::name << name_of(side);
    }
  }
}

TYPED_TEST(Dequantize, EqualsTheReference) {
  compare<TypeParam, float>(this->device);
  compare<TypeParam, bf16>(this->device);
}

// Decoded operands are exact in bf16: rounding the fp32 result changes nothing, but for extreme scales.
TYPED_TEST(Dequantize, OperandsAreExactInBf16) {
  using F = TypeParam;
  const Matrix m{128, 128};
  const auto x = test::uniform<float>(m.elements(), 9);
  const auto copy = reference::quantize<F>(Side::rowwise, m, reference::rounded_to_bf16(x));
  for (float v : reference::dequantize<F>(Side::rowwise, m, copy, F::factor_step))
    ASSERT_EQ(static_cast<float>(bf16(v)), v);
}

TYPED_TEST(Dequantize, SwizzlesAsTheGemmReads) {
  using F = TypeParam;
  if constexpr (formats::swizzles<F>()) {
    for (const Matrix m : {Matrix{160, 288}, Matrix{32, 96}, Matrix{288, 160}}) {
      SCOPED_TRACE(test::shown(m.rows, m.columns));
      Made<F, float> made(this->device, m, 8);
      test::Guarded swizzled[2];
      Copy* copies[2] = {&made.item.rowwise, &made.item.columnwise};
      for (int s = 0; s < 2; ++s) {
        swizzled[s] = test::Guarded(this->device, DType::u8, copies[s]->scales.elements());
        copies[s]->swizzled = swizzled[s].inner;
      }
      swizzle_scales(this->device.compute(), test::placed(this->device, formats::id_of<F>, {made.item}));
      for (int s = 0; s < 2; ++s) {
        const auto in = test::on_host<std::uint8_t>(this->device, copies[s]->scales);
        const auto half = in.begin() + std::ssize(in) / 2;
        auto expected = reference::swizzled_scales<F>(static_cast<Side>(s), m, {in.begin(), half});
        const auto second = reference::swizzled_scales<F>(static_cast<Side>(s), m, {half, in.end()});
        expected.insert(expected.end(), second.begin(), second.end());
        EXPECT_TRUE(test::same_bits(swizzled[s].bytes(this->device), expected)) << F::name << s;
        EXPECT_TRUE(swizzled[s].untouched(this->device));
      }
    }
  } else {
    const Made<F, float> made(this->device, {32, 96}, 8);
    EXPECT_THROW(swizzle_scales(this->device.compute(), test::placed(this->device, formats::id_of<F>, {made.item})),
                 Error);
  }
}

TYPED_TEST(Dequantize, GivesEqualBitsAHundredTimes) {
  using F = TypeParam;
  Made<F, bf16> made(this->device, {160, 96}, 12);
  test::Guarded swizzled(this->device, DType::u8, formats::swizzles<F>() ? made.item.rowwise.scales.elements() : 0);
  if (formats::swizzles<F>()) made.item.rowwise.swizzled = swizzled.inner;
  const QuantizeTable table = test::placed(this->device, formats::id_of<F>, {made.item});
  const Tensor raw{made.item.values.data, DType::u16, made.item.values.shape};
  std::vector<std::uint16_t> first;
  std::vector<std::uint8_t> first_swizzled;
  for (int run = 0; run < 100; ++run) {
    std::vector<std::uint16_t> bits;
    for (Side side : {Side::rowwise, Side::columnwise})
      for (const auto work : {dequantize, decode_factors}) {
        work(this->device.compute(), table, side);
        const auto more = test::on_host<std::uint16_t>(this->device, raw);
        bits.insert(bits.end(), more.begin(), more.end());
      }
    if (formats::swizzles<F>()) swizzle_scales(this->device.compute(), table);
    const auto bytes = swizzled.bytes(this->device);
    if (run == 0) first = bits, first_swizzled = bytes;
    ASSERT_TRUE(bits == first && bytes == first_swizzled) << run;
  }
}

TYPED_TEST(Dequantize, NeedsEveryElement) {
  using F = TypeParam;
  Made<F, float> made(this->device, {32, 96}, 8);
  made.item.values = made.item.values.flat(0, 96);
  EXPECT_THROW(
      dequantize(this->device.compute(), test::placed(this->device, formats::id_of<F>, {made.item}), Side::rowwise),
      Error);
}

}  // namespace
}  // namespace tessera
