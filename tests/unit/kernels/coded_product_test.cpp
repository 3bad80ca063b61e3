// Products of codes equal products of the decoded values, times the tensors' scales.
#include <gtest/gtest.h>

#include <numeric>
#include <random>

#include "kernels/activation/activation.hpp"
#include "kernels/base/runtime.hpp"
#include "kernels/convert/convert.hpp"
#include "kernels/gemm/gemm.hpp"
#include "kernels/gemm/route.hpp"
#include "tests/reference/activation.hpp"
#include "tests/support/coded_factor.hpp"

namespace tessera {
namespace {

using test::close, test::Factor, test::Formats;

constexpr std::int64_t rows = 160, in = 192, out = 96, experts = 3;
static_assert(rows % 32 == 0 && in % 32 == 0 && out % 32 == 0);

using Recipes = ::testing::Types<test::FormatsOfBlocks, test::FormatsOfTensors, Formats<formats::Mxfp8, formats::Mxfp8>,
                                 Formats<formats::Mxfp8Tiles, formats::Mxfp8>,
                                 Formats<formats::Nvfp4, formats::Nvfp4OneD>,
                                 Formats<formats::Nvfp4FourOverSix, formats::Nvfp4FourOverSixOneD>>;


/// Tolerance of sums in fp32, relative to the largest product. Tensor cores that multiply codes align a few products at
/// a time to the largest of them and keep 13 bits.
double tolerance_of(gemm::Route route) { return route == gemm::Route::native ? 2e-3 : 2e-5; }

template <class P>
struct CodedProduct : ::testing::Test {
  using W = typename P::Weight;
  using X = typename P::Value;
  using G = typename P::Slope;
  Device device;
  Stream& stream = device.compute();
  Factor<X> x{device, {rows, in}, 1, 1};
  Factor<G> dy{device, {rows, out}, 1, 2};
  Factor<W> w{device, {out, in}, 1, 3}, grouped{device, {out, in}, experts, 4};
  Tensor bias = test::on_device(device, {out}, test::uniform<bf16>(out, 5));
  static constexpr bool scaled = W::leaves_alpha;

  static gemm::Route route(gemm::Form form, std::int64_t of_experts = 0) {
    gemm::Product p{.type = DType::bf16, .form = form, .m = rows, .n = out, .k = in, .experts = of_experts};
    p.a = form == gemm::Form::forward ? formats::id_of<X> : formats::id_of<G>;
    p.b = form == gemm::Form::weight_gradient ? formats::id_of<X> : formats::id_of<W>;
    return gemm::route_of(p);
  }

  float alpha(float a, float b) const {
    return scaled ? W::tensor_step(a) * W::tensor_step(b) : 1.0f;
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

}  // namespace
}  // namespace tessera
