// An activation or its gradient computed by the quantizer: the codes of what the activation's own kernels store.
#include <gtest/gtest.h>

#include <limits>
#include <utility>

#include "kernels/activation/activation.hpp"
#include "tests/reference/activation.hpp"
#include "tests/support/quantized_case.hpp"
#include "tests/support/shown.hpp"
#include "tests/support/tolerances.hpp"

namespace tessera {
namespace {

using formats::Matrix;
using F = formats::Fp8BlockOneD;

constexpr FormatId format = formats::id_of<F>;
/// The last has more patches than there are blocks of threads that stay on a GPU.
constexpr Matrix sizes[] = {{16, 48}, {128, 128}, {144, 272}, {160, 96}, {48, 2880}, {400, 1040}, {1280, 7000}};

/// The gelu's input and its output's gradient for one matrix.
struct GeluCase {
  Matrix matrix;
  std::vector<bf16> pre, dy;
  Tensor of_pre, of_dy;

  GeluCase(Device& device, Matrix m, const std::vector<float>& special = {0.0f, -0.0f, 30, -30, 200, -1e4f, 1e15f})
      : matrix(m), pre(test::uniform<bf16>(m.elements(), 1)), dy(test::uniform<bf16>(m.elements(), 3)) {
    for (bf16& x : pre) x = bf16(8 * static_cast<float>(x));
    for (std::size_t i = 0; i < special.size(); ++i) pre[i] = bf16(special[i]);
    of_pre = test::on_device(device, Shape{m.rows, m.columns}, pre);
    of_dy = test::on_device(device, Shape{m.rows, m.columns}, dy);
  }
  Gelu gelu() const { return {of_pre}; }
  GeluGradient gradient() const { return {of_dy, of_pre}; }
};

/// Places for both copies, poisoned, between guards.
struct Copies {
  test::GuardedCopy<F> row, column;
  QuantizedMatrix item;

  Copies(Device& device, Matrix m) : row(device, Side::rowwise, m, 1), column(device, Side::columnwise, m, 1) {
    item.matrix = m;
    item.rowwise = row.copy();
    item.columnwise = column.copy();
    item.not_finite = test::on_device(device, std::vector<std::uint64_t>{0});
  }
  std::vector<std::uint8_t> bytes(Device& device) const {
    std::vector<std::uint8_t> all;
    for (const test::GuardedCopy<F>* copy : {&row, &column})
      for (const test::Guarded* part : {&copy->data, &copy->scales}) {
        const auto some = part->bytes(device);
        all.insert(all.end(), some.begin(), some.end());
      }
    EXPECT_TRUE(row.untouched(device) && column.untouched(device));
    return all;
  }
  bool marked(Device& device) const { return test::on_host<std::uint64_t>(device, item.not_finite).front() == 1; }
};

std::vector<std::uint8_t> quantized(Device& device, Matrix m, const Tensor& values, Purpose purpose) {
  Copies copies(device, m);
  copies.item.values = values;
  quantize_one(device.compute(), format, copies.item, purpose);
  return copies.bytes(device);
}

/// Column sums of each 128 rows: of sixteen rows each, then of these.
std::vector<float> sums_of(Matrix m, const std::vector<bf16>& values) {
  std::vector<float> sums;
  for (std::int64_t patch = 0; patch < m.rows; patch += 128)
    for (std::int64_t c = 0; c < m.columns; ++c) {
      float total = 0;
      for (std::int64_t first = patch; first < std::min(patch + 128, m.rows); first += 16) {
        float sum = 0;
        for (std::int64_t r = first; r < std::min(first + 16, m.rows); ++r)
          sum += static_cast<float>(values[static_cast<std::size_t>(r * m.columns + c)]);
        total += sum;
      }
      sums.push_back(total);
    }
  return sums;
}

TEST(QuantizeGelu, GivesTheCodesOfTheGelu) {
  Device device;
  for (const Matrix m : sizes) {
    SCOPED_TRACE(test::shown(m.rows, m.columns));
    const GeluCase c(device, m);
    Copies copies(device, m);
    quantize_one(device.compute(), format, copies.item, c.gelu());
    const Tensor values = test::poisoned<bf16>(device, c.of_pre.shape);
    gelu_forward(device.compute(), values, c.of_pre);
    EXPECT_TRUE(test::same_bits(copies.bytes(device), quantized(device, m, values, Purpose::activation)))
        << c.of_pre.shape.text();
    EXPECT_FALSE(copies.marked(device));
  }
}

TEST(QuantizeGelu, GivesTheCodesAndTheSumsOfTheGradient) {
  Device device;
  for (const Matrix m : sizes) {
    SCOPED_TRACE(test::shown(m.rows, m.columns));
    const GeluCase c(device, m);
    Copies copies(device, m);
    const Tensor sums = copies.item.column_sums = test::poisoned<float>(device, column_sums_shape(m));
    quantize_one(device.compute(), format, copies.item, c.gradient());
    const Tensor values = test::poisoned<bf16>(device, c.of_dy.shape);
    gelu_backward(device.compute(), values, c.of_dy, c.of_pre);
    EXPECT_TRUE(test::same_bits(copies.bytes(device), quantized(device, m, values, Purpose::gradient)))
        << c.of_dy.shape.text();
    EXPECT_TRUE(test::same_bits(test::on_host<float>(device, sums), sums_of(m, test::on_host<bf16>(device, values))));
    EXPECT_FALSE(copies.marked(device));
    Copies alone(device, m);
    quantize_one(device.compute(), format, alone.item, c.gradient());
    EXPECT_TRUE(test::same_bits(alone.bytes(device), copies.bytes(device))) << "without sums";
  }
}

TEST(QuantizeOne, SumsTheColumnsOfStoredValues) {
  Device device;
  for (const Matrix m : sizes) {
    SCOPED_TRACE(test::shown(m.rows, m.columns));
    const GeluCase c(device, m);
    Copies copies(device, m);
    copies.item.values = c.of_dy;
    copies.item.column_sums = test::poisoned<float>(device, column_sums_shape(m));
    quantize_one(device.compute(), format, copies.item, Purpose::gradient);
    EXPECT_TRUE(test::same_bits(copies.bytes(device), quantized(device, m, c.of_dy, Purpose::gradient)))
        << c.of_dy.shape.text();
    EXPECT_TRUE(test::same_bits(test::on_host<float>(device, copies.item.column_sums), sums_of(m, c.dy)));
    EXPECT_FALSE(copies.marked(device));
  }
}

// Against the formulas in double.
TEST(QuantizeGelu, EqualsTheReference) {
  Device device;
  const Matrix m{160, 272};
  const GeluCase c(device, m, {});
  const auto decoded = [&](Copies& copies) {
    copies.item.values = test::poisoned<bf16>(device, {m.rows, m.columns});
    decode_one(device.compute(), format, copies.item, Side::rowwise);
    return test::in_double(test::on_host<bf16>(device, copies.item.values));
  };
  Copies gelus(device, m), gradients(device, m);
  quantize_one(device.compute(), format, gelus.item, c.gelu());
  quantize_one(device.compute(), format, gradients.item, c.gradient());
  const auto of_gelus = decoded(gelus), of_gradients = decoded(gradients);
  for (std::size_t i = 0; i < c.pre.size(); ++i) {
    const auto x = static_cast<double>(c.pre[i]), dy = static_cast<double>(c.dy[i]);
    const double gelu = reference::gelu(x), gradient = dy * reference::gelu_slope(x);
    ASSERT_NEAR(of_gelus[i], gelu, test::tolerances::e4m3_code * std::max(std::abs(gelu), test::tolerances::e4m3_least))
        << x;
    ASSERT_NEAR(of_gradients[i], gradient,
                test::tolerances::e4m3_code * std::max(std::abs(gradient), test::tolerances::e4m3_least))
        << x;
  }
}

// A value of the gelu's input or of the gradient, at any place.
TEST(QuantizeGelu, SaysWhereAValueIsNotFinite) {
  Device device;
  constexpr float nan = std::numeric_limits<float>::quiet_NaN(), infinity = std::numeric_limits<float>::infinity();
  for (const Matrix m : {Matrix{128, 128}, Matrix{144, 272}}) {
    SCOPED_TRACE(test::shown(m.rows, m.columns));
    const auto places = {std::int64_t{0}, m.columns - 1, m.elements() / 2 + 3, m.elements() - 1};
    const auto marks = [&](const GeluCase& c, bool gradient) {
      Copies copies(device, m);
      if (gradient)
        quantize_one(device.compute(), format, copies.item, c.gradient());
      else
        quantize_one(device.compute(), format, copies.item, c.gelu());
      return copies.marked(device);
    };
    const GeluCase c(device, m);
    const auto with = [&](const Tensor& t, std::vector<bf16> values, std::int64_t place, float bad, bool gradient) {
      const bf16 before = std::exchange(values[static_cast<std::size_t>(place)], bf16(bad));
      device.upload(device.compute(), t, values.data());
      const bool marked = marks(c, gradient);
      values[static_cast<std::size_t>(place)] = before;
      device.upload(device.compute(), t, values.data());
      return marked;
    };
    for (const std::int64_t place : places) {
      EXPECT_TRUE(with(c.of_pre, c.pre, place, nan, false)) << place;
      EXPECT_TRUE(with(c.of_pre, c.pre, place, infinity, false)) << place;
      EXPECT_TRUE(with(c.of_pre, c.pre, place, nan, true)) << place;
      EXPECT_TRUE(with(c.of_dy, c.dy, place, nan, true)) << place;
      EXPECT_TRUE(with(c.of_dy, c.dy, place, -infinity, true)) << place;
      EXPECT_FALSE(with(c.of_pre, c.pre, place, 1e30f, false)) << place;
      EXPECT_FALSE(with(c.of_pre, c.pre, place, -1e15f, true)) << place;
    }
  }
}

// The same of a swiglu. Widths are multiples of 128; the last matrix has ragged rows of patches and many of them.
constexpr Matrix swiglu_sizes[] = {{16, 128}, {128, 256}, {144, 384}, {400, 1152}};

/// Gates and ups, and the gradient of what they make.
struct SwigluCase {
  Matrix matrix;  ///< of y
  std::vector<bf16> gate_up, dy;
  Tensor of_gate_up, of_dy;

  SwigluCase(Device& device, Matrix m)
      : matrix(m), gate_up(test::uniform<bf16>(2 * m.elements(), 5)), dy(test::uniform<bf16>(m.elements(), 6)) {
    for (bf16& x : gate_up) x = bf16(8 * static_cast<float>(x));
    const float special[] = {0.0f, -0.0f, 30, -30, 200, -200, 1e15f};
    for (std::size_t i = 0; i < std::size(special); ++i) gate_up[i] = bf16(special[i]);
    of_gate_up = test::on_device(device, Shape{m.rows, 2 * m.columns}, gate_up);
    of_dy = test::on_device(device, Shape{m.rows, m.columns}, dy);
  }
  Matrix both() const { return {matrix.rows, 2 * matrix.columns}; }
  Swiglu swiglu() const { return {of_gate_up}; }
  SwigluGradient gradient() const { return {of_dy, of_gate_up}; }
};

TEST(QuantizeSwiglu, GivesTheCodesOfTheSwiglu) {
  Device device;
  for (const Matrix m : swiglu_sizes) {
    SCOPED_TRACE(test::shown(m.rows, m.columns));
    const SwigluCase c(device, m);
    Copies copies(device, m);
    quantize_one(device.compute(), format, copies.item, c.swiglu());
    const Tensor values = test::poisoned<bf16>(device, c.of_dy.shape);
    swiglu_forward(device.compute(), values, c.of_gate_up);
    EXPECT_TRUE(test::same_bits(copies.bytes(device), quantized(device, m, values, Purpose::activation)))
        << c.of_dy.shape.text();
    EXPECT_FALSE(copies.marked(device));
  }
}

TEST(QuantizeSwiglu, GivesTheCodesAndTheSumsOfBothGradients) {
  Device device;
  for (const Matrix m : swiglu_sizes) {
    SCOPED_TRACE(test::shown(m.rows, m.columns));
    const SwigluCase c(device, m);
    Copies copies(device, c.both());
    const Tensor sums = copies.item.column_sums = test::poisoned<float>(device, column_sums_shape(c.both()));
    quantize_one(device.compute(), format, copies.item, c.gradient());
    const Tensor values = test::poisoned<bf16>(device, c.of_gate_up.shape);
    swiglu_backward(device.compute(), values, c.of_dy, c.of_gate_up);
    EXPECT_TRUE(test::same_bits(copies.bytes(device), quantized(device, c.both(), values, Purpose::gradient)))
        << c.of_gate_up.shape.text();
    EXPECT_TRUE(
        test::same_bits(test::on_host<float>(device, sums), sums_of(c.both(), test::on_host<bf16>(device, values))));
    EXPECT_FALSE(copies.marked(device));
    Copies alone(device, c.both());
    quantize_one(device.compute(), format, alone.item, c.gradient());
    EXPECT_TRUE(test::same_bits(alone.bytes(device), copies.bytes(device))) << "without sums";
  }
}

TEST(QuantizeSwiglu, SaysWhereAValueIsNotFinite) {
  Device device;
  const Matrix m{144, 256};
  const SwigluCase c(device, m);
  const auto marks = [&](std::int64_t place, float bad, bool of_dy) {
    std::vector<bf16> values = of_dy ? c.dy : c.gate_up;
    values[static_cast<std::size_t>(place)] = bf16(bad);
    const Tensor& to = of_dy ? c.of_dy : c.of_gate_up;
    device.upload(device.compute(), to, values.data());
    Copies forward(device, m), backward(device, c.both());
    quantize_one(device.compute(), format, forward.item, c.swiglu());
    quantize_one(device.compute(), format, backward.item, c.gradient());
    device.upload(device.compute(), to, (of_dy ? c.dy : c.gate_up).data());
    return std::pair{forward.marked(device), backward.marked(device)};
  };
  constexpr float nan = std::numeric_limits<float>::quiet_NaN(), infinity = std::numeric_limits<float>::infinity();
  using Marks = std::pair<bool, bool>;
  for (const std::int64_t row : {std::int64_t{0}, std::int64_t{70}, m.rows - 1})
    for (const std::int64_t column : {std::int64_t{9}, std::int64_t{255}}) {
      EXPECT_EQ(marks(row * m.columns + column, nan, true), Marks(false, true)) << row;
      EXPECT_EQ(marks(row * m.columns + column, -infinity, true), Marks(false, true)) << row;
      for (const std::int64_t half : {std::int64_t{0}, m.columns})
        EXPECT_EQ(marks(row * 2 * m.columns + half + column, nan, false), Marks(true, true)) << row << " " << half;
    }
  EXPECT_EQ(marks(9, 1e30f, true), Marks(false, false));
}

TEST(QuantizeSwiglu, RefusesWhatDoesNotFit) {
  Device device;
  const SwigluCase c(device, {32, 128});
  Copies copies(device, c.matrix);
  Stream& s = device.compute();
  const Tensor narrow = test::poisoned<bf16>(device, {32, 192}), few = test::poisoned<bf16>(device, {31, 256});
  EXPECT_THROW(quantize_one(s, format, copies.item, Swiglu{narrow}), Error);
  EXPECT_THROW(quantize_one(s, format, copies.item, SwigluGradient{c.of_dy, few}), Error);
  EXPECT_THROW(quantize_one(s, formats::id_of<formats::Mxfp8>, copies.item, c.swiglu()), Error);
}

TEST(QuantizeGelu, RefusesWhatDoesNotFit) {
  Device device;
  const Matrix m{32, 64};
  const GeluCase c(device, m);
  Copies copies(device, m);
  Stream& s = device.compute();
  const Tensor few = test::poisoned<bf16>(device, {m.rows - 1, m.columns}),
               few_sums = test::poisoned<float>(device, {2, m.columns});
  EXPECT_TRUE(quantizes_in_one_pass(format));
  EXPECT_FALSE(quantizes_in_one_pass(formats::id_of<formats::Nvfp4OneD>));
  EXPECT_THROW(quantize_one(s, format, copies.item, GeluGradient{c.of_dy, few}), Error);
  EXPECT_THROW(quantize_one(s, formats::id_of<formats::Mxfp8>, copies.item, c.gelu()), Error);
  copies.item.column_sums = few_sums;
  EXPECT_THROW(quantize_one(s, format, copies.item, c.gradient()), Error);
  copies.item.values = c.of_dy;
  EXPECT_THROW(quantize_one(s, format, copies.item, Purpose::gradient), Error);
}

/// The values that both copies stand for: of `rows` rows, which are all of them, or those in use of more.
std::vector<bf16> decoded(Device& device, const QuantizedMatrix& made, std::int64_t rows) {
  std::vector<bf16> all;
  for (const Side side : {Side::rowwise, Side::columnwise}) {
    QuantizedMatrix item = made;
    item.values = test::poisoned<bf16>(device, {made.matrix.rows, made.matrix.columns});
    decode_one(device.compute(), format, item, side);
    const std::vector<bf16> values = test::on_host<bf16>(device, item.values.row_range(0, rows));
    all.insert(all.end(), values.begin(), values.end());
  }
  return all;
}

TEST(QuantizeSwiglu, ComputesNothingOfRowsFromTheEndOn) {
  Device device;
  const Matrix m{400, 384};
  for (const std::int64_t end : {0, 128, 144, 384}) {
    SCOPED_TRACE(test::shown(end));
    const Matrix used{end, m.columns}, of_both{end, 2 * m.columns};
    const SwigluCase whole(device, m);
    const auto first = [&](const Tensor& t) { return t.row_range(0, end); };
    const Swiglu some{first(whole.of_gate_up)};
    const SwigluGradient some_gradient{first(whole.of_dy), first(whole.of_gate_up)};
    const Gelu gelu{whole.of_dy}, some_gelu{first(whole.of_dy)};
    const GeluGradient slope{whole.of_dy, whole.of_dy}, some_slope{first(whole.of_dy), first(whole.of_dy)};
    const auto check = [&](Matrix all, Matrix part, const auto& of_all, const auto& of_part) {
      Copies made(device, all), wanted(device, part);
      made.item.rows_end = test::on_device(device, std::vector<std::int32_t>{static_cast<std::int32_t>(end)});
      quantize_one(device.compute(), format, made.item, of_all);
      quantize_one(device.compute(), format, wanted.item, of_part);
      EXPECT_FALSE(made.marked(device)) << "NaN behind the end was read";
      if (end == 0) return;
      EXPECT_TRUE(test::same_bits(decoded(device, made.item, end), decoded(device, wanted.item, end)));
    };
    for (const Tensor& t : {whole.of_gate_up, whole.of_dy}) {
      std::vector<bf16> values = test::on_host<bf16>(device, t);
      std::fill(values.begin() + end * t.columns(), values.end(), bf16(std::numeric_limits<float>::quiet_NaN()));
      device.upload(device.compute(), t, values.data());
    }
    check(m, used, whole.swiglu(), some);
    check(whole.both(), of_both, whole.gradient(), some_gradient);
    check(m, used, gelu, some_gelu);
    check(m, used, slope, some_slope);
  }
}

}  // namespace
}  // namespace tessera
