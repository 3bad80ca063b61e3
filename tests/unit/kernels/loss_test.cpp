#include "kernels/loss/loss.hpp"

#include <gtest/gtest.h>

#include <limits>

#include "tests/reference/loss.hpp"
#include "tests/support/compare.hpp"
#include "tests/support/finite_differences.hpp"
#include "tests/support/on_device.hpp"
#include "tests/support/shown.hpp"

namespace tessera {
namespace {

using test::in_double, test::near, test::on_device, test::on_host, test::poisoned, test::uniform;
using Targets = std::vector<std::int32_t>;

constexpr float nan = std::numeric_limits<float>::quiet_NaN();

struct Size {
  std::int64_t rows, vocabulary, padded;
};
/// Rows of the last four are longer than half of the shared memory of a multiprocessor.
constexpr Size sizes[] = {{1, 1, 1},    {3, 5, 8},         {70, 257, 384},    {4, 1100, 1152},    {2, 512, 512},
                          {2500, 5, 8}, {3, 60000, 60032}, {4, 128256, 128256},
                          {2, 300000, 300032}, {2, 470000, 470016}};

// Logits whose padded columns are NaN, as uninitialised memory may be, and targets that include the first and last
// column.
template <class T> struct Case {
  Case(Size s, double width) : size(s), logits(uniform<T>(s.rows * s.padded, 31, -width, width)) {
    for (std::int64_t i = 0; i < s.rows * s.padded; ++i)
      if (i % s.padded >= s.vocabulary) logits[static_cast<std::size_t>(i)] = T(nan);
    for (double x : uniform<double>(s.rows, 32, 0, 1)) targets.push_back(static_cast<std::int32_t>(x * s.vocabulary));
    targets.front() = static_cast<std::int32_t>(s.vocabulary - 1);
    if (s.rows > 1) targets[1] = 0;
  }
  Tensor put() { return on_device(device, Shape{size.rows, size.padded}, logits); }
  double loss(const Tensor& dlogits, const Tensor& from, double scale = 1, double before = 0) {
    const Tensor sum = on_device(device, std::vector<double>{before}), factor = on_device(device, std::vector{scale});
    cross_entropy(device.compute(), arena, sum.as<double>(), dlogits, from, on_device(device, targets), size.vocabulary,
                  factor);
    return on_host<double>(device, sum).front();
  }

  Size size;
  std::vector<T> logits;
  Targets targets;
  Device device;
  Arena arena = device.arena(Category::activations, 1 << 16);
};

template <class T> class CrossEntropy : public ::testing::Test {};
TYPED_TEST_SUITE(CrossEntropy, test::Reals);

TYPED_TEST(CrossEntropy, EqualsReferenceAndLeavesPaddingZero) {
  using T = TypeParam;
  for (const Size& size : sizes) {
    SCOPED_TRACE(test::shown(size.rows, size.vocabulary, size.padded));
    Case<T> c(size, 4);
    const double scale = 0.25 * static_cast<double>(size.vocabulary);  // so that gradients are about 1
    const auto wanted =
        reference::cross_entropy(in_double(c.logits), c.targets, static_cast<std::size_t>(size.vocabulary), scale);
    const Tensor logits = c.put(), d = poisoned<T>(c.device, logits.shape);
    const double sum = c.loss(d, logits, scale, 7);
    EXPECT_TRUE(near(std::vector{sum}, std::vector{7 + wanted.sum}, test::tolerance<Accumulator<T>>));
    const auto gradient = on_host<T>(c.device, d);
    EXPECT_TRUE(near(gradient, wanted.dlogits, test::tolerance<T>));
    for (std::size_t i = 0; i < gradient.size(); ++i)
      if (static_cast<std::int64_t>(i) % size.padded >= size.vocabulary) {
        ASSERT_EQ(float(gradient[i]), 0) << i;
      }

    EXPECT_EQ(c.loss({}, logits, scale, 7), sum) << "without a gradient";
    EXPECT_EQ(c.loss(logits, logits, scale, 7), sum);
    EXPECT_TRUE(test::same_bits(on_host<T>(c.device, logits), gradient)) << "in place";
  }
}

TYPED_TEST(CrossEntropy, LargeLogitsDoNotOverflow) {
  using T = TypeParam;
  Case<T> c({3, 5, 8}, 1);
  for (std::size_t m = 0; m < 3; ++m)
    for (std::size_t j = 0; j < 5; ++j) c.logits[m * 8 + j] = T(j == 2 ? 1e4f : -1e4f);
  c.targets = {2, 2, 2};
  const Tensor logits = c.put(), d = poisoned<T>(c.device, logits.shape);
  EXPECT_EQ(c.loss(d, logits), 0);
  EXPECT_TRUE(near(on_host<T>(c.device, d), std::vector<double>(24, 0.0), 0));
  c.targets = {0, 2, 2};
  EXPECT_TRUE(near(std::vector{c.loss({}, logits)}, std::vector{2e4}, test::tolerance<T>));
}

TYPED_TEST(CrossEntropy, NanReachesTheSumAndItsRowAlone) {
  using T = TypeParam;
  for (std::size_t column : {0, 3, 4}) {
    SCOPED_TRACE(test::shown(column));
    Case<T> c({3, 5, 8}, 1);
    c.logits[8 + column] = T(nan);
    const Tensor logits = c.put(), d = poisoned<T>(c.device, logits.shape);
    EXPECT_TRUE(test::all_nan(std::vector{c.loss(d, logits)}));
    EXPECT_TRUE(test::all_nan(on_host<T>(c.device, d.flat(8, 5))));
    EXPECT_FALSE(test::all_nan(on_host<T>(c.device, d.flat(0, 1))));
    EXPECT_FALSE(test::all_nan(on_host<T>(c.device, d.flat(16, 1))));
  }
}

TYPED_TEST(CrossEntropy, RowsWithoutATargetCountInNothing) {
  using T = TypeParam;
  for (const Size& size : sizes)
    for (const double share : {0.3, 1.0}) {
      Case<T> c(size, 4);
      const auto draws = uniform<double>(size.rows, 33, 0, 1);
      for (std::size_t m = 0; m < c.targets.size(); ++m)
        if (draws[m] < share) {
          c.targets[m] = no_target;
          const auto row = c.logits.begin() + static_cast<std::ptrdiff_t>(m) * size.padded;
          std::fill(row, row + size.padded, T(nan));
        }
      const double scale = 0.25 * static_cast<double>(size.vocabulary);
      const auto wanted =
          reference::cross_entropy(in_double(c.logits), c.targets, static_cast<std::size_t>(size.vocabulary), scale);
      const Tensor logits = c.put(), d = poisoned<T>(c.device, logits.shape);
      const double sum = c.loss(d, logits, scale, 7);
      EXPECT_TRUE(near(std::vector{sum}, std::vector{7 + wanted.sum}, test::tolerance<Accumulator<T>>));
      EXPECT_TRUE(near(on_host<T>(c.device, d), wanted.dlogits, test::tolerance<T>));
      EXPECT_EQ(c.loss({}, logits, scale, 7), sum) << "without a gradient";
    }
}

TYPED_TEST(CrossEntropy, NoRows) {
  using T = TypeParam;
  Case<T> c({1, 5, 8}, 1);
  const Tensor none = poisoned<T>(c.device, {0, 8}), sum = on_device(c.device, std::vector<double>{3});
  cross_entropy(c.device.compute(), c.arena, sum.as<double>(), none, none, on_device(c.device, Targets{}), 5,
                on_device(c.device, std::vector{1.0}));
  EXPECT_EQ(on_host<double>(c.device, sum).front(), 3);
}

TEST(CrossEntropyGradient, IsTheDerivative) {
  Case<double> c({3, 11, 11}, 3);
  const Tensor logits = c.put(), d = poisoned<double>(c.device, logits.shape);
  c.loss(d, logits, 0.5);
  const auto value = [&](const std::vector<double>& at) {
    c.logits = at;
    return 0.5 * c.loss({}, c.put());
  };
  EXPECT_TRUE(test::derivative_is(value, std::vector(c.logits), on_host<double>(c.device, d), 1));
}

TEST(CrossEntropyChecks, RefuseWhatDoesNotFit) {
  Case<float> c({3, 5, 8}, 1);
  const Tensor logits = c.put();
  EXPECT_THROW(c.loss(poisoned<float>(c.device, {3, 7}), logits), Error);
  EXPECT_THROW(c.loss({}, poisoned<float>(c.device, {2, 8})), Error);
  EXPECT_THROW(c.loss({}, poisoned<float>(c.device, {3, 4})), Error) << "more vocabulary than columns";
}

}  // namespace
}  // namespace tessera
