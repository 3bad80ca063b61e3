#include "kernels/gemm/operand.hpp"

#include <gtest/gtest.h>

#include "kernels/gemm/gemm.hpp"
#include "tests/support/compare.hpp"
#include "tests/support/every_format.hpp"
#include "tests/support/quantized.hpp"

namespace tessera {
namespace {

using namespace test;

constexpr std::int64_t rows = 96, columns = 64, members = 3, gap = 128, stride = rows * columns + gap;
constexpr Matrix matrix{rows, columns};

/// One copy of all members, with the gaps between them, as a grouped operand.
template <formats::Format F>
struct Grouped {
  Tensor data, scales, amax;

  Grouped(Device& device, Side side, std::int64_t count)
      : data(poisoned(device, dtype_of<typename F::Element::Storage>,
                      {formats::data_bytes<F>((count - 1) * stride + matrix.elements()) /
                       std::int64_t{sizeof(typename F::Element::Storage)}})),
        scales(poisoned(device, dtype_of<typename F::Scale>,
                        {count * formats::padded_extent<F>(side, matrix).elements()})),
        amax(poisoned(device, DType::f32, {count})) {}
  Copy copy() const { return {data, scales, F::tensor_amax ? amax : Tensor{}, {}}; }
  Operand operand(Side side) const {
    const Shape shape = formats::data_shape<F>(side, matrix);
    const Codes codes{formats::id_of<F>, side, scales.flat(0, scales.elements() / members),
                      F::tensor_amax ? amax : Tensor{}};
    return {data.flat(0, shape.elements()).view(shape), codes, members, stride};
  }
};

template <formats::Format F>
void quantize_copy(Device& device, Side side, const Copy& copy, const Tensor& values, std::int64_t count) {
  QuantizedMatrix item{.name = "w", .matrix = matrix, .members = count, .member_stride = stride, .values = values,
                       .begin = {}, .rowwise = {}, .columnwise = {}, .block_scales = {}, .draws = {}};
  (side == Side::rowwise ? item.rowwise : item.columnwise) = copy;
  quantize(device.compute(), placed(device, formats::id_of<F>, {item}));
}

std::vector<std::uint8_t> bytes_of(Device& device, const Tensor& t, std::int64_t bytes) {
  return on_host<std::uint8_t>(device, {t.data, DType::u8, Shape{bytes}});
}

template <class F>
struct OperandOfCodes : ::testing::Test {
  Device device;
};
TYPED_TEST_SUITE(OperandOfCodes, EveryFormat);

TYPED_TEST(OperandOfCodes, AMemberIsTheMatrixQuantizedAlone) {
  using F = TypeParam;
  const auto values = uniform<bf16>((members - 1) * stride + matrix.elements(), 5);
  const Tensor all = on_device(this->device, values);
  for (Side side : {Side::rowwise, Side::columnwise}) {
    const Grouped<F> together(this->device, side, members);
    quantize_copy<F>(this->device, side, together.copy(), all, members);
    const Operand grouped = together.operand(side);
    EXPECT_EQ(grouped.rows(), rows);
    EXPECT_EQ(grouped.columns(), columns);
    for (std::int64_t e = 0; e < members; ++e) {
      const Grouped<F> own(this->device, side, 1);
      quantize_copy<F>(this->device, side, own.copy(), all.flat(e * stride, matrix.elements()), 1);
      const Operand one = grouped.member(e);
      EXPECT_EQ(one.members, 1);
      EXPECT_EQ(one.columns(), columns);
      const auto expect_equal = [&](const Tensor& part, const Tensor& whole, std::int64_t bytes) {
        if (bytes == 0) return;  // the format has none
        EXPECT_TRUE(same_bits(bytes_of(this->device, part, bytes), bytes_of(this->device, whole, bytes))) << e;
      };
      expect_equal(one.data, own.data, formats::data_bytes<F>(matrix.elements()));
      expect_equal(one.codes->scales, own.scales, own.scales.bytes());
      expect_equal(one.codes->amax, own.amax, F::tensor_amax ? own.amax.bytes() : 0);
    }
  }
}

TEST(Operand, AMemberOfValuesFollowsTheStride) {
  Device device;
  const auto values = uniform<float>(2 * stride, 6);
  const Tensor all = on_device(device, values);
  const Operand grouped{all.flat(0, matrix.elements()).view({rows, columns}), 2, stride};
  const Operand second = grouped.member(1);
  EXPECT_EQ(second.data.data, all.flat(stride, 1).data);
  EXPECT_EQ(second.rows(), rows);
}

TEST(Operand, OfCodesIsRefusedByProductsOfValues) {
  Device device;
  const Grouped<formats::Mxfp8> w(device, Side::rowwise, members);
  const Tensor x = poisoned<bf16>(device, {4, columns}), y = poisoned<bf16>(device, {4, rows});
  EXPECT_THROW(linear_forward(device.compute(), y, x, w.operand(Side::rowwise).member(0)), Error);
}

}  // namespace
}  // namespace tessera
