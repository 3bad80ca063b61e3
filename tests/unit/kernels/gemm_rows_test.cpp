// What lets a batch be cut into any micro-batches: the host's own products give a row the same bits wherever it lies.
#include <gtest/gtest.h>

#include "kernels/base/runtime.hpp"
#include "kernels/gemm/gemm.hpp"
#include "tests/support/compare.hpp"
#include "tests/support/on_device.hpp"

namespace tessera {
namespace {

using namespace test;

constexpr std::int64_t rows = 333, out = 190, in = 1030, first = 100, some = 57;

template <class T>
class GemmRows : public ::testing::Test {};
using Types = ::testing::Types<float, double>;
TYPED_TEST_SUITE(GemmRows, Types);

TYPED_TEST(GemmRows, BitsOfARowDependOnThatRowAlone) {
  using T = TypeParam;
  if (Runtime::back_end() == "Cuda") GTEST_SKIP() << "its library chooses by the number of rows";
  Device device;
  Stream& stream = device.compute();
  const auto random = [&](Shape shape, std::uint64_t seed) {
    return on_device(device, shape, uniform<T>(shape.elements(), seed));
  };
  const Tensor x = random({rows, in}, 1), dy = random({rows, out}, 2), w = random({out, in}, 3),
               bias = random({out}, 4);
  const auto forward = [&](const Tensor& part) {
    const Tensor y = poisoned<T>(device, {part.rows(), out});
    linear_forward(stream, y, part, {w}, bias);
    return on_host<T>(device, y);
  };
  const auto backward = [&](const Tensor& part) {
    const Tensor dx = poisoned<T>(device, {part.rows(), in});
    linear_input_gradient(stream, dx, part, {w});
    return on_host<T>(device, dx);
  };
  const auto cut = [](const std::vector<T>& all, std::int64_t columns) {
    const auto begin = all.begin() + first * columns;
    return std::vector<T>(begin, begin + some * columns);
  };
  EXPECT_TRUE(same_bits(forward(x.row_range(first, some)), cut(forward(x), out)));
  EXPECT_TRUE(same_bits(backward(dy.row_range(first, some)), cut(backward(dy), in)));
}

}  // namespace
}  // namespace tessera
