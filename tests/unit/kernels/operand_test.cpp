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

/// Both quantized copies of `count` members with gaps between them; each copy is a grouped operand.
template <formats::Format F>
struct Quantized {
  using Storage = typename F::Element::Storage;
  std::int64_t count;
  Copy copies[2];

  Quantized(Device& device, const Tensor& values, std::int64_t members_here) : count(members_here) {
    for (Side side : {Side::rowwise, Side::columnwise}) copies[static_cast<int>(side)] = copy(device, side);
    if (F::columnwise == formats::Columnwise::shared) copies[1].data = copies[0].data;
    const QuantizedMatrix item{.name = "w", .matrix = matrix, .members = count, .member_stride = stride,
                               .values = values, .begin = {}, .rowwise = copies[0], .columnwise = copies[1],
                               .block_scales = {}, .draws = {}};
    quantize(device.compute(), placed(device, formats::id_of<F>, {item}));
  }
  Copy copy(Device& device, Side side) const {
    const std::int64_t elements = (count - 1) * stride + matrix.elements();
    const std::int64_t words = formats::data_bytes<F>(elements) / std::int64_t{sizeof(Storage)};
    const std::int64_t scales = count * formats::padded_extent<F>(side, matrix).elements(),
                       amaxes = count * traits_of<F>().amaxes(side, matrix);
    return {poisoned(device, dtype_of<Storage>, {words}), poisoned(device, dtype_of<typename F::Scale>, {scales}),
            F::tensor_amax ? poisoned(device, DType::f32, {amaxes}) : Tensor{}, {}};
  }
  Operand operand(Side side) const {
    const Copy& all = copies[static_cast<int>(side)];
    const Shape shape = formats::data_shape<F>(side, matrix);
    const Codes codes{formats::id_of<F>, side, all.scales.flat(0, all.scales.elements() / count), all.amax};
    return {all.data.flat(0, shape.elements()).view(shape), codes, count, stride};
  }
};

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
  auto values = uniform<bf16>((members - 1) * stride + matrix.elements(), 5);
  for (std::size_t i = 0; i < values.size(); ++i)  // members have different amaxes
    values[i] = bf16(values[i] * static_cast<float>(1 + i / stride));
  const Tensor all = on_device(this->device, values);
  const Quantized<F> together(this->device, all, members);
  for (std::int64_t e = 0; e < members; ++e) {
    const Quantized<F> alone(this->device, all.flat(e * stride, matrix.elements()), 1);
    for (Side side : {Side::rowwise, Side::columnwise}) {
      const Operand one = together.operand(side).member(e), own = alone.operand(side);
      EXPECT_EQ(one.members, 1);
      EXPECT_EQ(one.rows(), rows);
      EXPECT_EQ(one.columns(), columns);
      const auto expect_equal = [&](const Tensor& part, const Tensor& whole, std::int64_t bytes) {
        if (bytes == 0) return;  // the format has none
        EXPECT_TRUE(same_bits(bytes_of(this->device, part, bytes), bytes_of(this->device, whole, bytes)))
            << e << " " << name_of(side);
      };
      expect_equal(one.data, own.data, formats::data_bytes<F>(matrix.elements()));
      expect_equal(one.codes->scales, own.codes->scales, own.codes->scales.bytes());
      expect_equal(one.codes->amax, own.codes->amax, F::tensor_amax ? own.codes->amax.bytes() : 0);
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

TEST(Operand, OfCodesIsDecodedBesideValues) {
  Device device;
  const Tensor values = on_device(device, uniform<bf16>(matrix.elements(), 7));
  const Quantized<formats::Mxfp8> w(device, values, 1);
  const Tensor decoded = poisoned<bf16>(device, {rows, columns});
  const Tensor x = on_device(device, {4, columns}, uniform<bf16>(4 * columns, 8));
  QuantizedMatrix item{.name = "w", .matrix = matrix, .members = 1, .member_stride = stride,
                       .values = decoded, .begin = {}, .rowwise = w.copies[0], .columnwise = {},
                       .block_scales = {}, .draws = {}};
  decode_one(device.compute(), formats::id_of<formats::Mxfp8>, item, Side::rowwise);
  const Tensor of_codes = poisoned<bf16>(device, {4, rows}), of_values = poisoned<bf16>(device, {4, rows});
  linear_forward(device.compute(), of_codes, x, w.operand(Side::rowwise));
  linear_forward(device.compute(), of_values, x, Operand(decoded));
  EXPECT_TRUE(same_bits(on_host<bf16>(device, of_codes), on_host<bf16>(device, of_values)));
}

TEST(Operand, OfCodesThatLieDecodedIsAMatrixOfValues) {
  std::vector<bf16> values(2 * matrix.elements());
  std::vector<float> amaxes(2);
  const Tensor first{values.data(), DType::bf16, {rows, columns}};
  const Codes codes{formats::id_of<formats::Nvfp4OneD>, Side::columnwise, {}, {amaxes.data(), DType::f32, {2}}};
  const Operand both(first, codes, 2, matrix.elements()), one = both.member(1);
  for (const Operand& operand : {both, one}) {
    EXPECT_TRUE(operand.decoded());
    EXPECT_EQ(operand.rows(), rows);
    EXPECT_EQ(operand.columns(), columns);
  }
  EXPECT_EQ(one.data.data, values.data() + matrix.elements());
  EXPECT_EQ(one.codes->amax.data, amaxes.data() + 1);
  EXPECT_FALSE(Operand(first).decoded());
}

}  // namespace
}  // namespace tessera
