#include "kernels/gemm/gemm.hpp"

#include <gtest/gtest.h>

#include <limits>

#include "kernels/base/math.hpp"
#include "kernels/base/runtime.hpp"
#include "tests/reference/activation.hpp"
#include "tests/reference/gemm.hpp"
#include "tests/support/compare.hpp"
#include "tests/support/norm.hpp"
#include "tests/support/on_device.hpp"
#include "tests/support/shown.hpp"

namespace tessera {
namespace {

using reference::Linear;
using namespace test;

template <class T>
std::vector<double> wide(const std::vector<T>& v) {
  return {v.begin(), v.end()};
}

/// The operands of one layer, on its own device.
template <class T>
struct Layer {
  Device device;
  Stream& stream = device.compute();
  Linear size;
  Tensor x, dy, w, bias;

  Layer() = default;
  explicit Layer(Linear n) { fill(n); }
  void fill(Linear n) {
    size = n;
    x = random({n.rows, n.in}, 1);
    dy = random({n.rows, n.out}, 2);
    w = random({n.out, n.in}, 3);
    bias = random({n.out}, 4);
  }
  Tensor random(Shape shape, std::uint64_t seed) {
    return on_device(device, shape, uniform<T>(shape.elements(), seed));
  }
  std::vector<double> values(const Tensor& t) { return wide(on_host<T>(device, t)); }
};

template <class T>
class Gemm : public ::testing::Test {};
using Types = ::testing::Types<double, float, bf16>;
TYPED_TEST_SUITE(Gemm, Types);

// One row, odd sizes, more than a tile of rows, strips of columns, multiples of eight.
constexpr Linear sizes[] = {{1, 5, 3}, {3, 1, 1}, {37, 65, 33}, {300, 17, 96}, {64, 700, 513}, {128, 256, 264}};

TYPED_TEST(Gemm, ForwardAgreesWithTheReference) {
  using T = TypeParam;
  Layer<T> l;
  for (const Linear& n : sizes) {
    SCOPED_TRACE(shown(n.rows, n.out, n.in));
    l.fill(n);
    const Tensor y = poisoned<T>(l.device, {n.rows, n.out});
    linear_forward(l.stream, y, l.x, {l.w}, l.bias);
    const auto rows = l.values(l.x), weight = l.values(l.w);
    EXPECT_TRUE(rounded_once(on_host<T>(l.device, y), reference::linear_forward(n, rows, weight, l.values(l.bias))));
    linear_forward(l.stream, y, l.x, {l.w});
    EXPECT_TRUE(rounded_once(on_host<T>(l.device, y), reference::linear_forward(n, rows, weight, {})));
  }
}

TYPED_TEST(Gemm, GeluIsTakenOfTheSum) {
  using T = TypeParam;
  Layer<T> l;
  for (const Linear& n : {Linear{70, 130, 48}, Linear{300, 264, 136}, Linear{385, 384, 72}}) {
    SCOPED_TRACE(shown(n.rows, n.out, n.in));
    l.fill(n);
    const Tensor plain = poisoned<T>(l.device, {n.rows, n.out});
    const Tensor pre = poisoned<T>(l.device, {n.rows, n.out});
    const Tensor y = poisoned<T>(l.device, {n.rows, n.out});
    linear_forward(l.stream, plain, l.x, {l.w}, l.bias);
    linear_gelu_forward(l.stream, y, pre, l.x, {l.w}, l.bias);
    const auto before = on_host<T>(l.device, pre), after = on_host<T>(l.device, y);
    // On the host gelu is computed from the stored (rounded) sum; a GPU's library may compute it before rounding.
    const bool stored = Runtime::back_end() != "Cuda";
    if (stored) {
      EXPECT_TRUE(same_bits(before, on_host<T>(l.device, plain)));
    }
    const auto sums = reference::linear_forward(l.size, l.values(l.x), l.values(l.w), l.values(l.bias));
    EXPECT_TRUE(rounded_once(before, sums));
    std::vector<double> expected;
    for (std::size_t i = 0; i < sums.size(); ++i)
      expected.push_back(gelu_of(stored ? static_cast<double>(before[i]) : sums[i]));
    EXPECT_TRUE(stored ? rounded_once(after, expected) : near(after, expected, tolerance<T>));
  }
}

TYPED_TEST(Gemm, InputGradientAgreesWithTheReference) {
  using T = TypeParam;
  Layer<T> l;
  for (const Linear& n : sizes) {
    SCOPED_TRACE(shown(n.rows, n.out, n.in));
    l.fill(n);
    const Tensor dx = poisoned<T>(l.device, {n.rows, n.in});
    linear_input_gradient(l.stream, dx, l.dy, {l.w});
    EXPECT_TRUE(
        rounded_once(on_host<T>(l.device, dx), reference::linear_input_gradient(n, l.values(l.dy), l.values(l.w))));
  }
}

TYPED_TEST(Gemm, GeluInputGradientAgreesWithTheReference) {
  using T = TypeParam;
  Layer<T> l;
  for (const Linear& n : {Linear{37, 65, 33}, Linear{128, 256, 264}, Linear{300, 200, 264}, Linear{385, 384, 72}}) {
    SCOPED_TRACE(shown(n.rows, n.out, n.in));
    l.fill(n);
    const Tensor dpre = poisoned<T>(l.device, {n.rows, n.in});
    linear_gelu_input_gradient(l.stream, dpre, l.dy, {l.w}, l.x);
    auto expected = reference::linear_input_gradient(n, l.values(l.dy), l.values(l.w));
    const auto pre = l.values(l.x);
    for (std::size_t i = 0; i < pre.size(); ++i) expected[i] *= reference::gelu_slope(pre[i]);
    EXPECT_TRUE(near(on_host<T>(l.device, dpre), expected, tolerance<T>));
  }
}

TYPED_TEST(Gemm, ADeepProductIsRoundedOnce) {
  using T = TypeParam;
  Layer<T> l;
  l.fill({40, 9001, 70});
  const Tensor dx = poisoned<T>(l.device, {40, 70});
  linear_input_gradient(l.stream, dx, l.dy, {l.w});
  EXPECT_TRUE(
      rounded_once(on_host<T>(l.device, dx), reference::linear_input_gradient(l.size, l.values(l.dy), l.values(l.w))));
}

TYPED_TEST(Gemm, WeightGradientAccumulates) {
  using T = TypeParam;
  using Sum = Accumulator<T>;
  Layer<T> l;
  for (const Linear& n : sizes) {
    SCOPED_TRACE(shown(n.rows, n.out, n.in));
    l.fill(n);
    Gradient dw{poisoned<Sum>(l.device, {n.out, n.in})};
    linear_weight_gradient(l.stream, dw, l.dy, l.x);
    auto expected = reference::linear_weight_gradient(n, l.values(l.dy), l.values(l.x));
    EXPECT_TRUE(near_in_norm(on_host<Sum>(l.device, dw.sum), expected, sum_tolerance<Sum>));
    dw.beta = 1;
    linear_weight_gradient(l.stream, dw, l.dy, l.x);
    for (double& v : expected) v *= 2;
    EXPECT_TRUE(near_in_norm(on_host<Sum>(l.device, dw.sum), expected, sum_tolerance<Sum>));
  }
}

TYPED_TEST(Gemm, AnUnfusedWeightGradientIsRoundedThenAdded) {
  using T = TypeParam;
  using Sum = Accumulator<T>;
  Layer<T> l;
  const Linear n{150, 40, 24};
  l.fill(n);
  const Tensor rounded = poisoned<T>(l.device, {n.out, n.in});
  linear_weight_gradient(l.stream, {rounded}, l.dy, l.x);
  const auto product = on_host<T>(l.device, rounded);
  EXPECT_TRUE(rounded_once(product, reference::linear_weight_gradient(n, l.values(l.dy), l.values(l.x))));

  Gradient sum{poisoned<Sum>(l.device, {n.out, n.in})};
  accumulate(l.stream, sum, rounded);
  std::vector<Sum> once(product.begin(), product.end()), twice;
  EXPECT_TRUE(same_bits(on_host<Sum>(l.device, sum.sum), once));
  sum.beta = 1;
  accumulate(l.stream, sum, rounded);
  for (Sum v : once) twice.push_back(v + v);
  EXPECT_TRUE(same_bits(on_host<Sum>(l.device, sum.sum), twice));
}

TYPED_TEST(Gemm, BiasGradientSumsColumns) {
  using T = TypeParam;
  using Sum = Accumulator<T>;
  Layer<T> l;
  for (const Linear& n : {Linear{1, 1, 1}, Linear{1000, 129, 1}, Linear{5000, 260, 1}}) {
    SCOPED_TRACE(shown(n.rows, n.out, n.in));
    const Tensor dy = l.random({n.rows, n.out}, 5);
    Gradient db{poisoned<Sum>(l.device, {n.out})};
    bias_gradient(l.stream, db, dy);
    auto expected = reference::bias_gradient(n, l.values(dy));
    EXPECT_TRUE(near_in_norm(on_host<Sum>(l.device, db.sum), expected, sum_tolerance<Sum>));
    db.beta = 1;
    bias_gradient(l.stream, db, dy);
    for (double& v : expected) v *= 2;
    EXPECT_TRUE(near_in_norm(on_host<Sum>(l.device, db.sum), expected, sum_tolerance<Sum>));
  }
}

TYPED_TEST(Gemm, WithoutRowsAGradientIsScaled) {
  using T = TypeParam;
  using Sum = Accumulator<T>;
  Layer<T> l;
  const Tensor x{l.x.data, dtype_of<T>, {0, 3}}, dy{l.x.data, dtype_of<T>, {0, 2}};
  Gradient dw{poisoned<Sum>(l.device, {2, 3})}, db{poisoned<Sum>(l.device, {2})};
  linear_weight_gradient(l.stream, dw, dy, x);
  bias_gradient(l.stream, db, dy);
  EXPECT_TRUE(same_bits(on_host<Sum>(l.device, dw.sum), std::vector<Sum>(6, Sum(0))));
  EXPECT_TRUE(same_bits(on_host<Sum>(l.device, db.sum), std::vector<Sum>(2, Sum(0))));
  const std::vector<Sum> kept{1, 2, 3, 4, 5, 6};
  l.device.upload(l.stream, dw.sum, kept.data());
  dw.beta = 1;
  linear_weight_gradient(l.stream, dw, dy, x);
  EXPECT_TRUE(same_bits(on_host<Sum>(l.device, dw.sum), kept));
}

TYPED_TEST(Gemm, EqualOperandsGiveEqualBits) {
  using T = TypeParam;
  using Sum = Accumulator<T>;
  Layer<T> l;
  const Linear n{333, 190, 77};
  l.fill(n);
  const auto once = [&] {
    const Tensor y = poisoned<T>(l.device, {n.rows, n.out}), dx = poisoned<T>(l.device, {n.rows, n.in});
    const Gradient dw{poisoned<Sum>(l.device, {n.out, n.in})}, db{poisoned<Sum>(l.device, {n.out})};
    linear_forward(l.stream, y, l.x, {l.w}, l.bias);
    linear_input_gradient(l.stream, dx, l.dy, {l.w});
    linear_weight_gradient(l.stream, dw, l.dy, l.x);
    bias_gradient(l.stream, db, l.dy);
    auto all = on_host<Sum>(l.device, dw.sum);
    for (const Tensor& t : {y, dx})
      for (T v : on_host<T>(l.device, t)) all.push_back(static_cast<Sum>(v));
    for (Sum v : on_host<Sum>(l.device, db.sum)) all.push_back(v);
    return all;
  };
  const auto first = once();
  for (int repeat = 0; repeat < 3; ++repeat) EXPECT_TRUE(same_bits(once(), first));
}

// Rows of experts: none first, none in the middle, none last, fewer than the smallest chunk, several chunks.
const std::vector<std::int32_t> uneven{0, 0, 7, 7, 300, 332, 332};

constexpr std::int64_t experts = 6, rows = 332;

struct Sides {
  std::int64_t out, in;
};
// Multiples of eight, which tensor cores take, in one tile and in several; odd.
constexpr Sides sides[] = {{40, 72}, {264, 136}, {67, 131}};

template <class T>
struct ExpertLayer : Layer<T> {
  std::int64_t out, in;
  Tensor offsets;

  explicit ExpertLayer(Sides s)
      : Layer<T>({rows, experts * s.out, s.in}), out(s.out), in(s.in) {  // w holds all members, one after the other
    this->dy = this->random({rows, out}, 6);
    offsets = on_device(this->device, uneven);
  }
  Operand grouped() const { return {this->w.row_range(0, out), experts, out * in}; }
  std::vector<Operand> discrete() const {
    std::vector<Operand> list;
    for (std::int64_t e = 0; e < experts; ++e) list.push_back({this->w.row_range(e * out, out)});
    return list;
  }
  /// Calls f(size, rows of x, rows of dy, w) for each expert.
  template <class F>
  void each(const F& f) {
    const auto all_x = this->values(this->x), all_dy = this->values(this->dy), all_w = this->values(this->w);
    for (std::size_t e = 0; e < experts; ++e) {
      const auto o = static_cast<std::size_t>(out), i = static_cast<std::size_t>(in);
      const auto begin = static_cast<std::size_t>(uneven[e]), n = static_cast<std::size_t>(uneven[e + 1]) - begin;
      f(Linear{static_cast<std::int64_t>(n), out, in}, std::span(all_x).subspan(begin * i, n * i),
        std::span(all_dy).subspan(begin * o, n * o), std::span(all_w).subspan(e * o * i, o * i));
    }
  }
};

template <class T>
class Experts : public ::testing::Test {};
TYPED_TEST_SUITE(Experts, Types);

template <class T>
void rows_agree(ExpertLayer<T>& l) {
  const std::int64_t out = l.out, in = l.in;
  std::vector<double> forward, backward;
  l.each([&](Linear n, auto x, auto dy, auto w) {
    for (double v : reference::linear_forward(n, x, w, {})) forward.push_back(v);
    for (double v : reference::linear_input_gradient(n, dy, w)) backward.push_back(v);
  });
  const Operand grouped = l.grouped();
  const auto discrete = l.discrete();
  const Tensor y = poisoned<T>(l.device, {rows, out}), dx = poisoned<T>(l.device, {rows, in});
  expert_forward(l.stream, y, l.x, {&grouped, 1}, l.offsets);
  expert_input_gradient(l.stream, dx, l.dy, {&grouped, 1}, l.offsets);
  const auto y1 = on_host<T>(l.device, y), dx1 = on_host<T>(l.device, dx);
  EXPECT_TRUE(rounded_once(y1, forward));
  EXPECT_TRUE(rounded_once(dx1, backward));
  expert_forward(l.stream, y, l.x, {discrete.data(), 6}, l.offsets);
  expert_input_gradient(l.stream, dx, l.dy, {discrete.data(), 6}, l.offsets);
  EXPECT_TRUE(same_bits(on_host<T>(l.device, y), y1));
  EXPECT_TRUE(same_bits(on_host<T>(l.device, dx), dx1));
}
TYPED_TEST(Experts, ForwardAndInputGradientAgreeWithTheReference) {
  for (const Sides& s : sides) {
    ExpertLayer<TypeParam> l(s);
    rows_agree(l);
  }
}

template <class T>
void sums_agree(ExpertLayer<T>& l) {
  using Sum = Accumulator<T>;
  const std::int64_t out = l.out, in = l.in;
  std::vector<double> expected;
  l.each([&](Linear n, auto x, auto dy, auto) {
    for (double v : reference::linear_weight_gradient(n, dy, x)) expected.push_back(v);
  });
  const Shape member{out, in};
  const std::int64_t stride = member.elements();
  const Tensor sums = poisoned<Sum>(l.device, {experts * out, in});
  Gradient grouped{sums.row_range(0, out), 0, experts, stride};
  expert_weight_gradient(l.stream, {&grouped, 1}, l.dy, l.x, l.offsets, {});
  const auto first = on_host<Sum>(l.device, sums);
  EXPECT_TRUE(near_in_norm(first, expected, sum_tolerance<Sum>));
  for (std::int64_t i = 0; i < stride; ++i)
    ASSERT_EQ(first[static_cast<std::size_t>(i)], Sum(0)) << "an expert without rows";

  std::vector<Gradient> discrete;
  for (std::int64_t e = 0; e < experts; ++e) discrete.push_back({sums.row_range(e * out, out), 1});
  expert_weight_gradient(l.stream, {discrete.data(), 6}, l.dy, l.x, l.offsets, {});
  for (double& v : expected) v *= 2;
  EXPECT_TRUE(near_in_norm(on_host<Sum>(l.device, sums), expected, sum_tolerance<Sum>));
}
TYPED_TEST(Experts, WeightGradientsAccumulate) {
  for (const Sides& s : sides) {
    ExpertLayer<TypeParam> l(s);
    sums_agree(l);
  }
}

template <class T>
void rounded_sums_agree(ExpertLayer<T>& l) {
  using Sum = Accumulator<T>;
  const std::int64_t out = l.out, in = l.in;
  std::vector<T> rounded;
  std::vector<double> expected;
  l.each([&](Linear n, auto x, auto dy, auto) {
    for (double v : reference::linear_weight_gradient(n, dy, x)) expected.push_back(v);
  });
  const Tensor sums = poisoned<Sum>(l.device, {experts * out, in});
  const Tensor scratch = poisoned<T>(l.device, {out, in});
  Gradient grouped{sums.row_range(0, out), 0, experts, scratch.elements()};
  expert_weight_gradient(l.stream, {&grouped, 1}, l.dy, l.x, l.offsets, scratch);
  const auto once = on_host<Sum>(l.device, sums);
  for (Sum v : once) {
    rounded.push_back(T(v));
    ASSERT_EQ(static_cast<Sum>(rounded.back()), v) << "not rounded";
  }
  EXPECT_TRUE(rounded_once(rounded, expected));
  grouped.beta = 1;
  expert_weight_gradient(l.stream, {&grouped, 1}, l.dy, l.x, l.offsets, scratch);
  std::vector<Sum> twice;
  for (Sum v : once) twice.push_back(v + v);
  EXPECT_TRUE(same_bits(on_host<Sum>(l.device, sums), twice));
}
TYPED_TEST(Experts, AnUnfusedWeightGradientIsRoundedThenAdded) {
  for (const Sides& s : sides) {
    ExpertLayer<TypeParam> l(s);
    rounded_sums_agree(l);
  }
}

// Tiles and summation steps that reach beyond an expert's last row must not use the next expert's values.
TYPED_TEST(Experts, NanStaysWithItsExpertAndEqualOperandsGiveEqualBits) {
  using T = TypeParam;
  using Sum = Accumulator<T>;
  for (const Sides& s : sides) {
    SCOPED_TRACE(shown(s.out, s.in));
    ExpertLayer<T> l(s);
    const Operand grouped = l.grouped();
    const Tensor y = poisoned<T>(l.device, {rows, s.out}), dx = poisoned<T>(l.device, {rows, s.in});
    const Tensor sums = poisoned<Sum>(l.device, {experts * s.out, s.in});
    const Gradient dw{sums.row_range(0, s.out), 0, experts, s.out * s.in};
    const auto all = [&] {
      expert_forward(l.stream, y, l.x, {&grouped, 1}, l.offsets);
      expert_input_gradient(l.stream, dx, l.dy, {&grouped, 1}, l.offsets);
      expert_weight_gradient(l.stream, {&dw, 1}, l.dy, l.x, l.offsets, {});
      std::vector<std::vector<double>> of;
      const auto rows_y = l.values(y), rows_dx = l.values(dx), members = wide(on_host<Sum>(l.device, sums));
      for (std::size_t e = 0; e < experts; ++e) {
        auto& own = of.emplace_back();
        const auto take = [&](const std::vector<double>& from, std::size_t begin, std::size_t end, std::size_t width) {
          own.insert(own.end(), from.begin() + static_cast<std::ptrdiff_t>(begin * width),
                     from.begin() + static_cast<std::ptrdiff_t>(end * width));
        };
        const auto begin = static_cast<std::size_t>(uneven[e]), end = static_cast<std::size_t>(uneven[e + 1]);
        take(rows_y, begin, end, static_cast<std::size_t>(s.out));
        take(rows_dx, begin, end, static_cast<std::size_t>(s.in));
        take(members, e, e + 1, static_cast<std::size_t>(s.out * s.in));
      }
      return of;
    };
    const auto clean = all();
    const auto again = all();
    const std::vector<T> nan(static_cast<std::size_t>(std::max(s.in, s.out)),
                             T(std::numeric_limits<float>::quiet_NaN()));
    for (std::int64_t row : {7, 299}) {  // first and last of expert 3
      l.device.upload(l.stream, l.x.row_range(row, 1), nan.data());
      l.device.upload(l.stream, l.dy.row_range(row, 1), nan.data());
    }
    const auto poisoned_one = all();
    for (std::size_t e = 0; e < experts; ++e) {
      EXPECT_TRUE(same_bits(again[e], clean[e])) << e;
      if (e != 3) {
        EXPECT_TRUE(same_bits(poisoned_one[e], clean[e])) << e;
      }
    }
  }
}

TEST(GemmChecks, RefusesWhatDoesNotFit) {
  Device device;
  Stream& s = device.compute();
  const Tensor x = poisoned<float>(device, {4, 8}), y = poisoned<float>(device, {4, 6}),
               w = poisoned<float>(device, {6, 8});
  const Tensor narrow = poisoned<float>(device, {6, 7}), half = poisoned<bf16>(device, {6, 8}),
               integers = poisoned<std::int32_t>(device, {4, 8});
  EXPECT_THROW(linear_forward(s, y, x, {narrow}), Error);
  EXPECT_THROW(linear_forward(s, y, x, {half}), Error);
  EXPECT_THROW(linear_forward(s, y, integers, {w}), Error);
  EXPECT_THROW(linear_forward(s, y, x, {w}, x), Error);
  EXPECT_THROW(linear_forward(s, y.row_range(0, 3), x, {w}), Error);
  EXPECT_THROW(linear_weight_gradient(s, {narrow}, y, x), Error);
  EXPECT_THROW(linear_weight_gradient(s, {half, 1}, y, x), Error);
  EXPECT_THROW(bias_gradient(s, {x}, y), Error);
  if (Runtime::back_end() == "Cuda") return;  // there the host never reads offsets
  const Operand weight{w};
  const Tensor descending = on_device<std::int32_t>(device, {0, 5});
  EXPECT_THROW(expert_forward(s, y, x, {&weight, 1}, descending), Error);
}

TEST(GemmChecks, ADryPassCountsWork) {
  Device device(Device::Kind::measuring);
  Stream& s = device.compute();
  const auto make = [&](Shape shape) { return device.allocate(Category::activations, DType::bf16, shape); };
  const Tensor x = make({100, 8}), y = make({100, 6});
  const Operand w{make({6, 8})};
  const Gradient dw{device.allocate(Category::gradients, DType::f32, {6, 8})};
  linear_forward(s, y, x, w);
  linear_input_gradient(s, x, y, w);
  linear_weight_gradient(s, dw, y, x);
  const Tensor offsets = device.allocate(Category::activations, DType::i32, {2});
  expert_forward(s, y, x, {&w, 1}, offsets);
  EXPECT_EQ(device.tape().flops, 4 * 2.0 * 100 * 6 * 8);
  EXPECT_EQ(s.launches(), 4);
}

}  // namespace
}  // namespace tessera
