// Products of codes equal products of the decoded values, times the tensors' scales.
#include <gtest/gtest.h>

#include <numeric>
#include <random>

#include "kernels/activation/activation.hpp"
#include "kernels/base/runtime.hpp"
#include "kernels/convert/convert.hpp"
#include "kernels/gemm/gemm.hpp"
#include "kernels/gemm/route.hpp"
#include "kernels/reference/activation.hpp"
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

/// A matrix, or several members, and both copies.
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
  /// Values of different magnitudes in each member, so that using another one's scale is found.
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
  /// The decoded factor as products read it, without the tensor's scale.
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

/// Tolerance of sums in fp32, relative to the largest product: tensor cores that multiply codes align a few products at
/// a time to the largest of them and keep 13 bits.
double tolerance_of(gemm::Route route) { return route == gemm::Route::native ? 2e-3 : 2e-5; }

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

  static gemm::Route route(gemm::Form form, std::int64_t of_experts = 0) {
    gemm::Product p{.type = DType::bf16, .form = form, .m = rows, .n = out, .k = in, .experts = of_experts};
    p.a = formats::id_of<X>;
    p.b = form == gemm::Form::weight_gradient ? formats::id_of<X> : formats::id_of<W>;
    return gemm::route_of(p);
  }

  float alpha(float a, float b) const {
    constexpr float r = 1.0f / 2688.0f;
    return scaled ? (a * r) * (b * r) : 1.0f;
  }
};
TYPED_TEST_SUITE(CodedProduct, Recipes);

/// The expected products of codes, computed in double.
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
  const auto before = test::on_host<bf16>(this->device, pre), after = test::on_host<bf16>(this->device, activated);
  const bool native = this->route(gemm::Form::forward) == gemm::Route::native;
  if (Runtime::back_end() == "Cuda")  // there the two are kernels of different libraries
    EXPECT_TRUE(close(test::in_double(before), test::in_double(test::on_host<bf16>(this->device, biased)), 8e-3));
  else
    EXPECT_TRUE(test::same_bits(before, test::on_host<bf16>(this->device, biased)));
  std::vector<double> expected;
  for (const bf16 v : before) expected.push_back(reference::gelu(static_cast<double>(v)));
  EXPECT_TRUE(close(test::in_double(after), expected, 1e-2));
  if (this->scaled || native) return;
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
  const double exact = tolerance_of(this->route(gemm::Form::weight_gradient));
  const Tensor dw = test::poisoned<float>(this->device, {out, in});
  linear_weight_gradient(this->stream, {dw}, this->dy.operand(Side::columnwise), this->x.operand(Side::columnwise));
  EXPECT_TRUE(close(test::in_double(test::on_host<float>(this->device, dw)), wanted, exact));
  linear_weight_gradient(this->stream, {dw, 1}, this->dy.operand(Side::columnwise), this->x.operand(Side::columnwise));
  for (double& v : wanted) v *= 2;
  EXPECT_TRUE(close(test::in_double(test::on_host<float>(this->device, dw)), wanted, exact));
  const Tensor unfused = test::poisoned<bf16>(this->device, {out, in});
  linear_weight_gradient(this->stream, {unfused}, this->dy.operand(Side::columnwise),
                         this->x.operand(Side::columnwise));
  for (double& v : wanted) v /= 2;
  EXPECT_TRUE(close(test::in_double(test::on_host<bf16>(this->device, unfused)), wanted, 4e-3));
}

TYPED_TEST(CodedProduct, TakesFactorsThatAreDecodedAlready) {
  const auto decoded = [&](const auto& factor, Side side) {
    Operand operand = factor.operand(side);
    operand.data = factor.values(this->device, side).data;
    operand.codes->scales = {};
    return operand;
  };
  const auto made = [&](const auto& of) {
    const Tensor y = test::poisoned<bf16>(this->device, {rows, out}),
                 dx = test::poisoned<bf16>(this->device, {rows, in}),
                 dw = test::poisoned<float>(this->device, {out, in});
    linear_forward(this->stream, y, of(this->x, Side::rowwise), this->w.operand(Side::rowwise), this->bias);
    linear_input_gradient(this->stream, dx, of(this->dy, Side::rowwise), this->w.operand(Side::columnwise));
    linear_weight_gradient(this->stream, {dw}, of(this->dy, Side::columnwise), of(this->x, Side::columnwise));
    return std::tuple(test::on_host<bf16>(this->device, y), test::on_host<bf16>(this->device, dx),
                      test::on_host<float>(this->device, dw));
  };
  if (this->route(gemm::Form::forward) == gemm::Route::native) {
    EXPECT_THROW(made(decoded), Error);
    return;
  }
  const auto [y, dx, dw] = made(decoded);
  const auto [coded_y, coded_dx, coded_dw] = made([](const auto& factor, Side side) { return factor.operand(side); });
  EXPECT_TRUE(test::same_bits(y, coded_y));
  EXPECT_TRUE(test::same_bits(dx, coded_dx));
  EXPECT_TRUE(test::same_bits(dw, coded_dw));
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
  const auto y_of_each = forward({each.data(), experts});  // first: operands decoded for one product are kept
  const auto y = forward({&whole, 1}), dx_of_each = backward({columns.data(), experts}),
             dx = backward({&columns_of_all, 1});
  EXPECT_TRUE(test::same_bits(y_of_each, y));
  EXPECT_TRUE(test::same_bits(dx_of_each, dx));

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

TYPED_TEST(CodedProduct, OfManyDiscreteExpertsTakeFewLaunches) {
  using Fixture = TestFixture;
  constexpr std::int64_t many = 150, narrow = 64, wide = 32;
  const Factor<typename Fixture::W> weights{this->device, {wide, narrow}, many, 6};
  const Factor<typename Fixture::X> tokens{this->device, {rows, narrow}, 1, 7};
  std::vector<std::int32_t> begins(many + 1, 32);  // only experts 70 and 149 have rows
  std::fill_n(begins.begin(), 71, 0);
  begins.back() = rows;
  const Tensor offsets = test::on_device(this->device, begins);
  const Operand whole = weights.operand(Side::rowwise);
  std::vector<Operand> each;
  for (std::int64_t e = 0; e < many; ++e) each.push_back(whole.member(e));
  std::int64_t launches = 0;
  const auto forward = [&](const ExpertOperands& list) {
    const Tensor y = test::poisoned<bf16>(this->device, {rows, wide});
    launches = -this->stream.launches();
    expert_forward(this->stream, y, tokens.operand(Side::rowwise), list, offsets);
    launches += this->stream.launches();
    return test::on_host<bf16>(this->device, y);
  };
  const auto of_each = forward({each.data(), many});  // first: operands decoded for one product are kept
  const std::int64_t launches_of_each = launches;
  EXPECT_TRUE(test::same_bits(of_each, forward({&whole, 1})));
  EXPECT_LE(launches_of_each, launches + 3);
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
    const gemm::Route route = this->route(gemm::Form::weight_gradient, experts);
    EXPECT_TRUE(close(test::in_double(one), wanted, tolerance_of(route))) << e;
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

// Products of FP8 blocks in the shapes of layers, which tensor cores may multiply as codes.
struct Fp8Blocks : ::testing::TestWithParam<std::array<std::int64_t, 3>> {
  const std::int64_t tokens = GetParam()[0], wide_in = GetParam()[1], wide_out = GetParam()[2];
  Device device;
  Stream& stream = device.compute();
  Factor<formats::Fp8BlockOneD> x{device, {tokens, wide_in}, 1, 1}, dy{device, {tokens, wide_out}, 1, 2};
  Factor<formats::Fp8Block> w{device, {wide_out, wide_in}, 1, 3};

  template <class F>
  std::vector<double> decoded(const Factor<F>& factor, Side side) {
    return test::in_double(test::on_host<bf16>(device, factor.values(device, side).data));
  }
  /// Entries of c [m,n] against sums in double: the corners and others. a(i, l) and b(l, j) are the factors.
  template <class A, class B>
  void compare(const std::vector<double>& c, std::int64_t m, std::int64_t n, std::int64_t k, double tolerance,
               const A& a, const B& b) {
    ASSERT_EQ(c.size(), static_cast<std::size_t>(m * n));
    std::vector<std::pair<std::int64_t, std::int64_t>> places{{0, 0}, {0, n - 1}, {m - 1, 0}, {m - 1, n - 1}};
    std::mt19937 random(7);
    for (int i = 0; i < 300; ++i)
      places.emplace_back(static_cast<std::int64_t>(random()) % m, static_cast<std::int64_t>(random()) % n);
    std::vector<double> actual, wanted;
    for (const auto& [i, j] : places) {
      double sum = 0;
      for (std::int64_t l = 0; l < k; ++l) sum += a(i, l) * b(l, j);
      wanted.push_back(sum);
      actual.push_back(c[static_cast<std::size_t>(i * n + j)]);
    }
    EXPECT_TRUE(close(actual, wanted, tolerance));
    for (const double v : c) ASSERT_TRUE(std::isfinite(v));
  }
  static auto rows_of(const std::vector<double>& v, std::int64_t columns) {
    return [&v, columns](std::int64_t i, std::int64_t j) { return v[static_cast<std::size_t>(i * columns + j)]; };
  }
  static auto columns_of(const std::vector<double>& v, std::int64_t columns) {
    return [&v, columns](std::int64_t i, std::int64_t j) { return v[static_cast<std::size_t>(j * columns + i)]; };
  }
  /// Tolerances of products rounded to bf16, and of sums in fp32.
  static constexpr double rounded = 4e-3, summed = 2e-3;
};

TEST_P(Fp8Blocks, AreThoseOfTheirDecodedValues) {
  const Tensor y = test::poisoned<bf16>(device, {tokens, wide_out}),
               dx = test::poisoned<bf16>(device, {tokens, wide_in}),
               dw = test::poisoned<float>(device, {wide_out, wide_in});
  linear_forward(stream, y, x.operand(Side::rowwise), w.operand(Side::rowwise));
  linear_input_gradient(stream, dx, dy.operand(Side::rowwise), w.operand(Side::columnwise));
  linear_weight_gradient(stream, {dw}, dy.operand(Side::columnwise), x.operand(Side::columnwise));
  const auto x_rows = decoded(x, Side::rowwise), w_rows = decoded(w, Side::rowwise),
             dy_rows = decoded(dy, Side::rowwise), x_columns = decoded(x, Side::columnwise),
             dy_columns = decoded(dy, Side::columnwise);
  compare(test::in_double(test::on_host<bf16>(device, y)), tokens, wide_out, wide_in, rounded, rows_of(x_rows, wide_in),
          columns_of(w_rows, wide_in));
  compare(test::in_double(test::on_host<bf16>(device, dx)), tokens, wide_in, wide_out, rounded,
          rows_of(dy_rows, wide_out), rows_of(w_rows, wide_in));
  compare(test::in_double(test::on_host<float>(device, dw)), wide_out, wide_in, tokens, summed,
          columns_of(dy_columns, wide_out), rows_of(x_columns, wide_in));
  linear_weight_gradient(stream, {dw, 1}, dy.operand(Side::columnwise), x.operand(Side::columnwise));
  const auto twice = columns_of(dy_columns, wide_out);
  compare(
      test::in_double(test::on_host<float>(device, dw)), wide_out, wide_in, tokens, summed,
      [&](std::int64_t i, std::int64_t l) { return 2 * twice(i, l); }, rows_of(x_columns, wide_in));
}

TEST_P(Fp8Blocks, TakeTheirBiasAndAGelusGradient) {
  const Tensor y = test::poisoned<bf16>(device, {tokens, wide_out}), plain = test::poisoned<bf16>(device, y.shape),
               bias = test::on_device(device, {wide_out}, test::uniform<bf16>(wide_out, 5, -40, 40));
  linear_forward(stream, y, x.operand(Side::rowwise), w.operand(Side::rowwise), bias);
  linear_forward(stream, plain, x.operand(Side::rowwise), w.operand(Side::rowwise));
  const auto with = test::in_double(test::on_host<bf16>(device, y));
  auto without = test::in_double(test::on_host<bf16>(device, plain));
  const auto b = test::in_double(test::on_host<bf16>(device, bias));
  for (std::size_t i = 0; i < without.size(); ++i) without[i] += b[i % b.size()];
  EXPECT_TRUE(close(with, without, 1e-2));

  const Tensor dx = test::poisoned<bf16>(device, {tokens, wide_in}), dpre = test::poisoned<bf16>(device, dx.shape),
               pre = test::on_device(device, dx.shape, test::uniform<bf16>(dx.elements(), 6, -3, 3));
  linear_input_gradient(stream, dx, dy.operand(Side::rowwise), w.operand(Side::columnwise));
  gelu_backward(stream, dx, dx, pre);
  linear_gelu_input_gradient(stream, dpre, dy.operand(Side::rowwise), w.operand(Side::columnwise), pre);
  EXPECT_TRUE(close(test::in_double(test::on_host<bf16>(device, dpre)),
                    test::in_double(test::on_host<bf16>(device, dx)), 1e-2));
}

// A captured product reads everything from the device, scales too.
TEST_P(Fp8Blocks, CapturedReadTheScalesOfTheirReplay) {
  if (Runtime::back_end() != "Cuda") GTEST_SKIP() << "no capture on the host";
  const Tensor y = test::poisoned<bf16>(device, {tokens, wide_out}),
               dw = test::poisoned<float>(device, {wide_out, wide_in});
  const auto products = [&] {
    linear_forward(stream, y, x.operand(Side::rowwise), w.operand(Side::rowwise));
    linear_weight_gradient(stream, {dw}, dy.operand(Side::columnwise), x.operand(Side::columnwise));
  };
  products();
  const auto first = test::on_host<bf16>(device, y);
  const Graph graph = stream.capture(products);
  const std::int64_t n = x.matrix.elements();
  x.item.values = test::on_device(device, {n}, test::uniform<bf16>(n, 9, -90, 90));
  quantize_one(stream, formats::id_of<formats::Fp8BlockOneD>, x.item, Purpose::activation);
  products();
  const auto y_eager = test::on_host<bf16>(device, y);
  const auto dw_eager = test::on_host<float>(device, dw);
  clear(stream, y), clear(stream, dw);
  stream.run(graph);
  EXPECT_TRUE(test::same_bits(test::on_host<bf16>(device, y), y_eager));
  EXPECT_TRUE(test::same_bits(test::on_host<float>(device, dw), dw_eager));
  EXPECT_FALSE(test::same_bits(y_eager, first));
}

/// Tokens, inputs and outputs: GPT-2's four sizes, and sides that are multiples of 16 only, or not even that.
std::vector<std::array<std::int64_t, 3>> layer_shapes() {
  std::vector<std::array<std::int64_t, 3>> all{{272, 208, 144}, {160, 1296, 400}, {48, 200, 88}};
  if (Runtime::back_end() == "Cuda")
    for (const std::array<std::int64_t, 3>& s : std::initializer_list<std::array<std::int64_t, 3>>{{1024, 768, 2304},
                                                                                                   {1024, 3072, 768},
                                                                                                   {1024, 1024, 4096},
                                                                                                   {1024, 1280, 3840},
                                                                                                   {1024, 1600, 6400},
                                                                                                   {1024, 6400, 1600},
                                                                                                   {1040, 1600, 4800},
                                                                                                   {128, 768, 50304}})
      all.push_back(s);
  return all;
}
INSTANTIATE_TEST_SUITE_P(Layers, Fp8Blocks, ::testing::ValuesIn(layer_shapes()));

// The same of experts: the first, one in the middle and the last have no rows, and rows lie behind the last.
struct Fp8Experts : Fp8Blocks {
  static constexpr std::int64_t count = 6;
  Factor<formats::Fp8Block> grouped{device, {wide_out, wide_in}, count, 3};
  const std::vector<std::int32_t> begins = begins_at(256);

  /// Expert 1 has `first` rows at most, expert 4 the rest of two thirds; 2 has half of all.
  std::vector<std::int32_t> begins_at(std::int64_t first) const {
    const std::int64_t one = std::min(first, tokens), middle = std::max(one, tokens / 256 * 128),
                       end = std::max(middle, tokens - tokens / 3);
    std::vector<std::int32_t> all;
    for (const std::int64_t at : {std::int64_t{0}, std::int64_t{0}, one, middle, middle, end, end})
      all.push_back(static_cast<std::int32_t>(at));
    return all;
  }
  template <class F>
  void each_with_rows(const F& f) const {
    for (std::int64_t e = 0; e < count; ++e) {
      const std::int64_t begin = begins[static_cast<std::size_t>(e)], end = begins[static_cast<std::size_t>(e) + 1];
      if (end > begin) f(e, begin, end - begin);
    }
  }
  static std::vector<double> part(const std::vector<double>& all, std::int64_t begin, std::int64_t size) {
    return {all.begin() + begin, all.begin() + begin + size};
  }
  /// Checks rows times weights, an expert at a time: its rows [.., k] and its weight w, where b(w) gives b(l, j).
  template <class B>
  void compare_rows(const Tensor& c, const std::vector<double>& a, const std::vector<double>& weights, std::int64_t k,
                    const B& b) {
    const auto all = test::in_double(test::on_host<bf16>(device, c));
    const std::int64_t n = c.columns(), size = wide_in * wide_out;
    each_with_rows([&](std::int64_t e, std::int64_t begin, std::int64_t m) {
      const std::vector<double> mine = part(a, begin * k, m * k), weight = part(weights, e * size, size);
      compare(part(all, begin * n, m * n), m, n, k, rounded, rows_of(mine, k), b(weight));
    });
  }
  std::vector<double> decoded_members(Side side) {
    const Operand all = grouped.values(device, side);
    return test::in_double(test::on_host<bf16>(device, {all.data.data, DType::bf16, {count * wide_out, wide_in}}));
  }
};

TEST_P(Fp8Experts, AreThoseOfTheirDecodedValues) {
  const Tensor y = test::poisoned<bf16>(device, {tokens, wide_out}),
               dx = test::poisoned<bf16>(device, {tokens, wide_in}), offsets = test::on_device(device, begins);
  const Operand forward = grouped.operand(Side::rowwise), backward = grouped.operand(Side::columnwise);
  expert_forward(stream, y, x.operand(Side::rowwise), {&forward, 1}, offsets);
  expert_input_gradient(stream, dx, dy.operand(Side::rowwise), {&backward, 1}, offsets);
  compare_rows(y, decoded(x, Side::rowwise), decoded_members(Side::rowwise), wide_in,
               [&](const std::vector<double>& weight) { return columns_of(weight, wide_in); });
  compare_rows(dx, decoded(dy, Side::rowwise), decoded_members(Side::columnwise), wide_out,
               [&](const std::vector<double>& weight) { return rows_of(weight, wide_in); });
}

TEST_P(Fp8Experts, SumTheirOwnRowsInWeightGradients) {
  const std::int64_t size = wide_out * wide_in;
  const Tensor dw = test::poisoned<float>(device, {count * wide_out, wide_in}),
               offsets = test::on_device(device, begins);
  const auto x_columns = decoded(x, Side::columnwise), dy_columns = decoded(dy, Side::columnwise);
  for (const float beta : {0.0f, 1.0f}) {
    const ::tessera::Gradient sums{dw.flat(0, size).view({wide_out, wide_in}), beta, count, size};
    expert_weight_gradient(stream, {&sums, 1}, dy.operand(Side::columnwise), x.operand(Side::columnwise), offsets, {});
    const auto all = test::in_double(test::on_host<float>(device, dw));
    for (const std::int64_t e : {std::int64_t{0}, std::int64_t{3}, count - 1})
      EXPECT_EQ(part(all, e * size, size), std::vector<double>(static_cast<std::size_t>(size)));
    each_with_rows([&](std::int64_t e, std::int64_t begin, std::int64_t n) {
      const auto a = part(dy_columns, begin * wide_out, n * wide_out),
                 b = part(x_columns, begin * wide_in, n * wide_in);
      const auto once = columns_of(a, wide_out);
      compare(
          part(all, e * size, size), wide_out, wide_in, n, summed,
          [&](std::int64_t i, std::int64_t l) { return (1 + beta) * once(i, l); }, rows_of(b, wide_in));
    });
  }
}

// A captured product reads everything from the device, the counts of rows too. Its bits are repeatable.
TEST_P(Fp8Experts, CapturedReadTheCountsOfTheirReplay) {
  if (Runtime::back_end() != "Cuda") GTEST_SKIP() << "no capture on the host";
  const std::int64_t size = wide_out * wide_in;
  const Tensor y = test::poisoned<bf16>(device, {tokens, wide_out}),
               dx = test::poisoned<bf16>(device, {tokens, wide_in}),
               dw = test::poisoned<float>(device, {count * wide_out, wide_in}),
               offsets = test::on_device(device, begins), others = test::on_device(device, begins_at(128));
  const Operand forward = grouped.operand(Side::rowwise), backward = grouped.operand(Side::columnwise);
  const ::tessera::Gradient sums{dw.flat(0, size).view({wide_out, wide_in}), 0, count, size};
  const auto products = [&] {
    expert_forward(stream, y, x.operand(Side::rowwise), {&forward, 1}, offsets);
    expert_input_gradient(stream, dx, dy.operand(Side::rowwise), {&backward, 1}, offsets);
    expert_weight_gradient(stream, {&sums, 1}, dy.operand(Side::columnwise), x.operand(Side::columnwise), offsets, {});
  };
  const auto bits = [&] {
    return std::tuple{test::on_host<bf16>(device, y), test::on_host<bf16>(device, dx),
                      test::on_host<float>(device, dw)};
  };
  const auto clear_all = [&] { clear(stream, y), clear(stream, dx), clear(stream, dw); };
  clear_all(), products();
  const Graph graph = stream.capture(products);
  copy(stream, offsets, others);
  clear_all(), products();
  const auto [y_eager, dx_eager, dw_eager] = bits();
  for (int turn = 0; turn < 3; ++turn) {
    clear_all(), stream.run(graph);
    const auto [y_replayed, dx_replayed, dw_replayed] = bits();
    EXPECT_TRUE(test::same_bits(y_replayed, y_eager));
    EXPECT_TRUE(test::same_bits(dx_replayed, dx_eager));
    EXPECT_TRUE(test::same_bits(dw_replayed, dw_eager));
  }
}

/// Tokens, inputs and outputs.
std::vector<std::array<std::int64_t, 3>> expert_shapes() {
  std::vector<std::array<std::int64_t, 3>> all{{768, 208, 144}, {400, 144, 272}, {384, 200, 88}};
  if (Runtime::back_end() == "Cuda")
    for (const std::array<std::int64_t, 3>& s :
         std::initializer_list<std::array<std::int64_t, 3>>{{1536, 1024, 2048}, {3072, 768, 512}, {1520, 2048, 256}})
      all.push_back(s);
  return all;
}
INSTANTIATE_TEST_SUITE_P(Layers, Fp8Experts, ::testing::ValuesIn(expert_shapes()));

}  // namespace
}  // namespace tessera
