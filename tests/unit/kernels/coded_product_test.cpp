// Products of codes: those of the decoded values, times the tensors' scales.
#include <gtest/gtest.h>

#include <numeric>

#include "kernels/gemm/gemm.hpp"
#include "tests/support/quantized_case.hpp"

namespace tessera {
namespace {

using formats::Matrix;

constexpr std::int64_t rows = 160, in = 192, out = 96, experts = 3;
static_assert(rows % 32 == 0 && in % 32 == 0 && out % 32 == 0);

template <class W, class X>
struct Pair {
  using Weight = W;
  using Value = X;
};
using Recipes = ::testing::Types<Pair<formats::Fp8Block, formats::Fp8BlockOneD>, Pair<formats::Mxfp8, formats::Mxfp8>,
                                 Pair<formats::Mxfp8Tiles, formats::Mxfp8>, Pair<formats::Nvfp4, formats::Nvfp4OneD>>;

/// A matrix, or several, and both of its copies.
template <class F>
struct Factor {
  Matrix matrix;
  std::int64_t members;
  test::GuardedCopy<F> row, column;
  QuantizedMatrix item;

  Factor(Device& device, Matrix m, std::int64_t count, std::uint64_t seed)
      : matrix(m), members(count), row(device, Side::rowwise, m, count), column(device, Side::columnwise, m, count) {
    item.matrix = m;
    item.members = count;
    item.values = test::on_device(device, {count * m.elements()}, members_of(m.elements(), count, seed));
    item.rowwise = row.copy();
    item.columnwise = column.copy();
    if (F::columnwise == formats::Columnwise::shared) item.columnwise.data = item.rowwise.data;
    quantize_one(device.compute(), formats::id_of<F>, item, Purpose::weight);
  }
  /// Of unequal magnitudes, like factors of unequal seeds, so that no scale passes for another.
  static std::vector<bf16> members_of(std::int64_t elements, std::int64_t count, std::uint64_t seed) {
    std::vector<bf16> all;
    for (std::int64_t e = 0; e < count; ++e) {
      const double most = static_cast<double>(seed) + static_cast<double>(e);
      const std::uint64_t own = seed + 10 * static_cast<std::uint64_t>(e);
      const std::vector<bf16> one = test::uniform<bf16>(elements, own, -most, most);
      all.insert(all.end(), one.begin(), one.end());
    }
    return all;
  }
  Operand operand(Side side) const {
    const Copy& copy = side == Side::rowwise ? item.rowwise : item.columnwise;
    const Codes codes{formats::id_of<F>,
                      side,
                      {copy.scales.data, copy.scales.type, formats::scale_shape<F>(side, matrix)},
                      copy.amax};
    return {{copy.data.data, copy.data.type, formats::data_shape<F>(side, matrix)}, codes, members, matrix.elements()};
  }
  /// As products see them, without the tensor's scale.
  Operand values(Device& device, Side side) const {
    QuantizedMatrix decoded = item;
    decoded.values = test::poisoned<bf16>(device, {members * matrix.rows, matrix.columns});
    decode_one(device.compute(), formats::id_of<F>, decoded, side);
    return {decoded.values.flat(0, matrix.elements()).view({matrix.rows, matrix.columns}), members, matrix.elements()};
  }
  float amax(Device& device, Side side, std::int64_t e = 0) const {
    const Tensor& t = side == Side::rowwise ? item.rowwise.amax : item.columnwise.amax;
    return t ? test::on_host<float>(device, t)[static_cast<std::size_t>(e)] : 2688.0f;
  }
};

template <class P>
struct CodedProduct : ::testing::Test {
  using W = typename P::Weight;
  using X = typename P::Value;
  Device device;
  Stream& stream = device.compute();
  Factor<X> x{device, {rows, in}, 1, 1}, dy{device, {rows, out}, 1, 2};
  Factor<W> w{device, {out, in}, 1, 3}, grouped{device, {out, in}, experts, 4};
  Tensor bias = test::on_device(device, {out}, test::uniform<bf16>(out, 5));
  static constexpr bool scaled = W::tensor_amax;

  float alpha(float a, float b) const {
    constexpr float r = 1.0f / 2688.0f;
    return scaled ? (a * r) * (b * r) : 1.0f;
  }
  /// What a plain product of `values` left in fp32 becomes.
  static std::vector<bf16> finished(const std::vector<float>& sums, float alpha, const std::vector<bf16>& bias = {}) {
    std::vector<bf16> all;
    for (std::size_t i = 0; i < sums.size(); ++i) {
      const float v = alpha * sums[i];
      all.push_back(bf16(bias.empty() ? v : v + static_cast<float>(bias[i % bias.size()])));
    }
    return all;
  }
};
TYPED_TEST_SUITE(CodedProduct, Recipes);

/// The products of values that codes must equal: exactly where nothing scales them, else by fp32 factors in double.
std::vector<double> product(const std::vector<double>& a, const std::vector<double>& b, std::int64_t m, std::int64_t n,
                            std::int64_t k, double scale) {
  std::vector<double> c(static_cast<std::size_t>(m * n));
  for (std::int64_t i = 0; i < m; ++i)
    for (std::int64_t j = 0; j < n; ++j) {
      double sum = 0;
      for (std::int64_t l = 0; l < k; ++l)
        sum += a[static_cast<std::size_t>(i * k + l)] * b[static_cast<std::size_t>(l * n + j)];
      c[static_cast<std::size_t>(i * n + j)] = sum * scale;
    }
  return c;
}
std::vector<double> turned(const std::vector<double>& a, std::int64_t m, std::int64_t n) {
  std::vector<double> t(a.size());
  for (std::int64_t i = 0; i < m; ++i)
    for (std::int64_t j = 0; j < n; ++j)
      t[static_cast<std::size_t>(j * m + i)] = a[static_cast<std::size_t>(i * n + j)];
  return t;
}
::testing::AssertionResult close(const std::vector<double>& actual, const std::vector<double>& wanted,
                                 double tolerance) {
  double most = 0;
  for (double v : wanted) most = std::max(most, std::abs(v));
  std::vector<double> a = actual, e = wanted;
  for (double& v : a) v /= most;
  for (double& v : e) v /= most;
  return test::near(a, e, tolerance);
}

TYPED_TEST(CodedProduct, ForwardMultipliesDecodedValuesByBothScales) {
  const Operand a = this->x.values(this->device, Side::rowwise), b = this->w.values(this->device, Side::rowwise);
  const auto of_a = test::in_double(test::on_host<bf16>(this->device, a.data)),
             of_b = test::in_double(test::on_host<bf16>(this->device, b.data));
  const float scale = this->alpha(this->x.amax(this->device, Side::rowwise), this->w.amax(this->device, Side::rowwise));
  const Tensor y = test::poisoned<bf16>(this->device, {rows, out});
  linear_forward(this->stream, y, this->x.operand(Side::rowwise), this->w.operand(Side::rowwise));
  const auto wanted = product(of_a, turned(of_b, out, in), rows, out, in, scale);
  EXPECT_TRUE(close(test::in_double(test::on_host<bf16>(this->device, y)), wanted, 4e-3));

  const Tensor biased = test::poisoned<bf16>(this->device, {rows, out}),
               pre = test::poisoned<bf16>(this->device, {rows, out}),
               activated = test::poisoned<bf16>(this->device, {rows, out});
  linear_forward(this->stream, biased, this->x.operand(Side::rowwise), this->w.operand(Side::rowwise), this->bias);
  linear_gelu_forward(this->stream, activated, pre, this->x.operand(Side::rowwise), this->w.operand(Side::rowwise),
                      this->bias);
  EXPECT_TRUE(test::same_bits(test::on_host<bf16>(this->device, pre), test::on_host<bf16>(this->device, biased)));
  if (this->scaled) return;
  const Tensor plain = test::poisoned<bf16>(this->device, {rows, out});
  linear_forward(this->stream, plain, a, b, this->bias);
  EXPECT_TRUE(test::same_bits(test::on_host<bf16>(this->device, biased), test::on_host<bf16>(this->device, plain)));
}

TYPED_TEST(CodedProduct, GradientsTakeTheCopiesWhoseBlocksRunAlongTheSum) {
  const auto of_dy =
                 test::in_double(test::on_host<bf16>(this->device, this->dy.values(this->device, Side::rowwise).data)),
             of_w = test::in_double(
                 test::on_host<bf16>(this->device, this->w.values(this->device, Side::columnwise).data));
  const Tensor dx = test::poisoned<bf16>(this->device, {rows, in});
  linear_input_gradient(this->stream, dx, this->dy.operand(Side::rowwise), this->w.operand(Side::columnwise));
  const float of_dx =
      this->alpha(this->dy.amax(this->device, Side::rowwise), this->w.amax(this->device, Side::columnwise));
  EXPECT_TRUE(
      close(test::in_double(test::on_host<bf16>(this->device, dx)), product(of_dy, of_w, rows, in, out, of_dx), 4e-3));

  const auto dy_columns = test::in_double(
                 test::on_host<bf16>(this->device, this->dy.values(this->device, Side::columnwise).data)),
             x_columns = test::in_double(
                 test::on_host<bf16>(this->device, this->x.values(this->device, Side::columnwise).data));
  const float of_dw =
      this->alpha(this->dy.amax(this->device, Side::columnwise), this->x.amax(this->device, Side::columnwise));
  auto wanted = product(turned(dy_columns, rows, out), x_columns, out, in, rows, of_dw);
  const Tensor dw = test::poisoned<float>(this->device, {out, in});
  linear_weight_gradient(this->stream, {dw}, this->dy.operand(Side::columnwise), this->x.operand(Side::columnwise));
  EXPECT_TRUE(close(test::in_double(test::on_host<float>(this->device, dw)), wanted, 2e-5));
  linear_weight_gradient(this->stream, {dw, 1}, this->dy.operand(Side::columnwise), this->x.operand(Side::columnwise));
  for (double& v : wanted) v *= 2;
  EXPECT_TRUE(close(test::in_double(test::on_host<float>(this->device, dw)), wanted, 2e-5));
  const Tensor unfused = test::poisoned<bf16>(this->device, {out, in});
  linear_weight_gradient(this->stream, {unfused}, this->dy.operand(Side::columnwise),
                         this->x.operand(Side::columnwise));
  for (double& v : wanted) v /= 2;
  EXPECT_TRUE(close(test::in_double(test::on_host<bf16>(this->device, unfused)), wanted, 4e-3));
}

TYPED_TEST(CodedProduct, OfExpertsAreThoseOfEachAlone) {
  const std::vector<std::int32_t> begins{0, 32, 32, 160};
  const Tensor offsets = test::on_device(this->device, begins);
  const Operand whole = this->grouped.operand(Side::rowwise);
  std::vector<Operand> each, columns;
  for (std::int64_t e = 0; e < experts; ++e) {
    each.push_back(whole.member(e));
    columns.push_back(this->grouped.operand(Side::columnwise).member(e));
  }
  const Operand columns_of_all = this->grouped.operand(Side::columnwise);
  const auto forward = [&](const ExpertOperands& weights) {
    const Tensor y = test::poisoned<bf16>(this->device, {rows, out});
    expert_forward(this->stream, y, this->x.operand(Side::rowwise), weights, offsets);
    return test::on_host<bf16>(this->device, y);
  };
  const auto backward = [&](const ExpertOperands& weights) {
    const Tensor dx = test::poisoned<bf16>(this->device, {rows, in});
    expert_input_gradient(this->stream, dx, this->dy.operand(Side::rowwise), weights, offsets);
    return test::on_host<bf16>(this->device, dx);
  };
  const auto y = forward({&whole, 1}), dx = backward({&columns_of_all, 1});
  EXPECT_TRUE(test::same_bits(forward({each.data(), experts}), y));
  EXPECT_TRUE(test::same_bits(backward({columns.data(), experts}), dx));

  const auto of_x =
      test::in_double(test::on_host<bf16>(this->device, this->x.values(this->device, Side::rowwise).data));
  const Operand decoded = this->grouped.values(this->device, Side::rowwise);
  for (std::int64_t e = 0; e < experts; ++e) {
    const std::int64_t begin = begins[static_cast<std::size_t>(e)], n = begins[static_cast<std::size_t>(e) + 1] - begin;
    if (n == 0) continue;
    const auto of_w = test::in_double(test::on_host<bf16>(this->device, decoded.member(e).data));
    const std::vector<double> part(of_x.begin() + begin * in, of_x.begin() + (begin + n) * in);
    const float scale =
        this->alpha(this->x.amax(this->device, Side::rowwise), this->grouped.amax(this->device, Side::rowwise, e));
    const std::vector<bf16> made(y.begin() + begin * out, y.begin() + (begin + n) * out);
    EXPECT_TRUE(close(test::in_double(made), product(part, turned(of_w, out, in), n, out, in, scale), 4e-3)) << e;
  }
}

TYPED_TEST(CodedProduct, WeightGradientsOfExpertsSumTheirRows) {
  const std::vector<std::int32_t> begins{0, 128, 128, 160};
  const Tensor offsets = test::on_device(this->device, begins);
  const auto dy_columns = test::in_double(
                 test::on_host<bf16>(this->device, this->dy.values(this->device, Side::columnwise).data)),
             x_columns = test::in_double(
                 test::on_host<bf16>(this->device, this->x.values(this->device, Side::columnwise).data));
  const float scale =
      this->alpha(this->dy.amax(this->device, Side::columnwise), this->x.amax(this->device, Side::columnwise));
  const auto made = [&](const Tensor& scratch) {
    const Tensor dw = test::poisoned<float>(this->device, {experts * out, in});
    const ::tessera::Gradient sums{dw.flat(0, out * in).view({out, in}), 0, experts, out * in};
    expert_weight_gradient(this->stream, {&sums, 1}, this->dy.operand(Side::columnwise),
                           this->x.operand(Side::columnwise), offsets, scratch);
    return test::on_host<float>(this->device, dw);
  };
  const auto fused = made({}), unfused = made(test::poisoned<bf16>(this->device, {out, in}));
  for (std::int64_t e = 0; e < experts; ++e) {
    const std::int64_t begin = begins[static_cast<std::size_t>(e)], n = begins[static_cast<std::size_t>(e) + 1] - begin;
    const auto piece = [&](const std::vector<double>& v, std::int64_t width) {
      return std::vector<double>(v.begin() + begin * width, v.begin() + (begin + n) * width);
    };
    const std::vector<float> one(fused.begin() + e * out * in, fused.begin() + (e + 1) * out * in);
    const std::vector<float> rounded(unfused.begin() + e * out * in, unfused.begin() + (e + 1) * out * in);
    if (n == 0) {
      EXPECT_TRUE(test::same_bits(one, std::vector<float>(one.size(), 0.0f)));
      continue;
    }
    const auto wanted = product(turned(piece(dy_columns, out), n, out), piece(x_columns, in), out, in, n, scale);
    EXPECT_TRUE(close(test::in_double(one), wanted, 2e-5)) << e;
    EXPECT_TRUE(close(test::in_double(rounded), wanted, 4e-3)) << e;
    for (const float v : rounded) ASSERT_EQ(static_cast<float>(bf16(v)), v);
  }
}

TYPED_TEST(CodedProduct, TheWrongCopyIsRefused) {
  const Tensor y = test::poisoned<bf16>(this->device, {rows, out});
  EXPECT_THROW(linear_forward(this->stream, y, this->x.operand(Side::columnwise), this->w.operand(Side::rowwise)),
               Error);
  EXPECT_THROW(linear_forward(this->stream, y, this->x.operand(Side::rowwise), this->w.operand(Side::columnwise)),
               Error);
}

}  // namespace
}  // namespace tessera
