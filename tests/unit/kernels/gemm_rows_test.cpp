// The host's own products give a row the same bits wherever it lies, so that a batch may be cut into any micro-batches.
#include <gtest/gtest.h>

#include "kernels/base/runtime.hpp"
#include "kernels/gemm/gemm.hpp"
#include "tests/support/compare.hpp"
#include "tests/support/on_device.hpp"

namespace tessera {
namespace {

using namespace test;

constexpr std::int64_t rows = 1693;  // more than a tile of any kernel, and no multiple of its blocks

struct Weight {
  std::int64_t out, in;
};
constexpr Weight weights[] = {{190, 1030}, {64, 64}, {1100, 136}, {7, 33}, {256, 512}};

struct Part {
  std::int64_t first, count;
};
// Numbers of rows in a micro-batch: less than a block of any kernel, more than a tile, and a remainder.
constexpr Part parts[] = {{100, 57}, {13, 300}, {240, 493}, {700, 33}, {3, 36}, {5, 1300}};
// With AMX, few rows of bf16 go to other kernels.
constexpr Part few[] = {{41, 1}, {100, 2}, {7, 11}, {256, 13}};

template <class T>
class GemmRows : public ::testing::Test {};
using Types = ::testing::Types<float, double, bf16>;
TYPED_TEST_SUITE(GemmRows, Types);

template <class T>
class Products {
 public:
  explicit Products(const Weight& w) : out_(w.out), in_(w.in) {}

  std::vector<T> forward(const Part& part) {
    const Tensor y = poisoned<T>(device_, {part.count, out_});
    linear_forward(stream(), y, x_.row_range(part.first, part.count), {w_}, bias_);
    return on_host<T>(device_, y);
  }
  std::vector<T> backward(const Part& part) {
    const Tensor dx = poisoned<T>(device_, {part.count, in_});
    linear_input_gradient(stream(), dx, dy_.row_range(part.first, part.count), {w_});
    return on_host<T>(device_, dx);
  }
  /// The same with the rows as those of an expert.
  std::vector<T> expert(const Part& part) {
    const Tensor y = poisoned<T>(device_, {part.count, out_});
    const Tensor offsets = on_device(device_, std::vector<std::int32_t>{0, static_cast<std::int32_t>(part.count)});
    const Operand w{w_};
    expert_forward(stream(), y, x_.row_range(part.first, part.count), {&w, 1}, offsets);
    return on_host<T>(device_, y);
  }

 private:
  Stream& stream() { return device_.compute(); }
  Tensor random(Shape shape, std::uint64_t seed) {
    return on_device(device_, shape, uniform<T>(shape.elements(), seed));
  }
  Device device_;
  std::int64_t out_, in_;
  Tensor x_ = random({rows, in_}, 1), dy_ = random({rows, out_}, 2), w_ = random({out_, in_}, 3),
         bias_ = random({out_}, 4);
};

template <class T>
std::vector<T> cut(const std::vector<T>& all, const Part& part) {
  const auto columns = static_cast<std::int64_t>(all.size()) / rows;
  return {all.begin() + part.first * columns, all.begin() + (part.first + part.count) * columns};
}

TYPED_TEST(GemmRows, BitsOfARowDependOnThatRowAlone) {
  using T = TypeParam;
  if (Runtime::back_end() == "Cuda") GTEST_SKIP() << "its library chooses by the number of rows";
  for (const Weight& weight : weights) {
    Products<T> products(weight);
    const auto forward = products.forward({0, rows}), backward = products.backward({0, rows}),
               expert = products.expert({0, rows});
    const auto expect_alike = [&](const Part& part) {
      SCOPED_TRACE(::testing::Message() << weight.out << " x " << weight.in << ", rows " << part.first << " + "
                                        << part.count);
      EXPECT_TRUE(same_bits(products.forward(part), cut(forward, part)));
      EXPECT_TRUE(same_bits(products.backward(part), cut(backward, part)));
      EXPECT_TRUE(same_bits(products.expert(part), cut(expert, part)));
    };
    for (const Part& part : parts) expect_alike(part);
    if constexpr (!std::is_same_v<T, bf16>)
      for (const Part& part : few) expect_alike(part);
  }
}

}  // namespace
}  // namespace tessera
