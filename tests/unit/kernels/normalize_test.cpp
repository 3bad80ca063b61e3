#include "kernels/normalize/normalize.hpp"

#include <gtest/gtest.h>

#include <limits>
#include <numeric>

#include "kernels/convert/convert.hpp"
#include "tests/reference/normalize.hpp"
#include "tests/support/compare.hpp"
#include "tests/support/finite_differences.hpp"
#include "tests/support/on_device.hpp"
#include "tests/support/shown.hpp"

namespace tessera {
namespace {

using test::in_double, test::near, test::on_device, test::on_host, test::poisoned, test::uniform;

enum class Branch { no, yes };
enum class Bias { no, yes };

// A norm with its tensors on the device.
template <class T> struct Case {
  using A = Accumulator<T>;
  Case(Norm norm, std::int64_t m, std::int64_t n)
      : kind(norm), rows(m), columns(n), x(uniform<T>(m * n, 1, -2, 3)), branch(uniform<T>(m * n, 2)),
        weight(uniform<T>(n, 3, 0.5, 1.5)), bias(uniform<T>(n, 4)), dy(uniform<T>(m * n, 5)) {}

  Tensor put(const std::vector<T>& values) { return on_device(device, Shape{rows, columns}, values); }
  Tensor row(const std::vector<T>& values) { return on_device(device, Shape{columns}, values); }

  void forward(Branch added, Bias given) {
    norm_forward(device.compute(), kind,
                 {.y = y,
                  .residual_out = residual,
                  .mean = mean,
                  .rstd = rstd,
                  .x = put(x),
                  .branch = added == Branch::yes ? put(branch) : Tensor{},
                  .weight = row(weight),
                  .bias = given == Bias::yes ? row(bias) : Tensor{}});
  }
  /// Arguments of the gradients, which go to `dx`.
  NormBackward into(const Tensor& dx) {
    return {.dx = dx, .dy = put(dy), .x = put(x), .mean = mean, .rstd = rstd, .weight = row(weight)};
  }

  Norm kind;
  std::int64_t rows, columns;
  std::vector<T> x, branch, weight, bias, dy;
  Device device;
  Arena arena = device.arena(Category::activations, 1 << 20);
  Tensor y = poisoned<T>(device, {rows, columns}), residual = poisoned<T>(device, {rows, columns});
  Tensor mean = kind == Norm::layer ? poisoned<A>(device, {rows}) : Tensor{}, rstd = poisoned<A>(device, {rows});
};

struct Size {
  std::int64_t rows, columns;
};
constexpr Size sizes[] = {{1, 1}, {3, 7}, {5, 33}, {2, 513}, {130, 96}};
constexpr Norm kinds[] = {Norm::layer, Norm::rms};

template <class T> class Normalize : public ::testing::Test {};
TYPED_TEST_SUITE(Normalize, test::Reals);

TYPED_TEST(Normalize, ForwardEqualsReference) {
  using T = TypeParam;
  using A = Accumulator<T>;
  constexpr double tolerance = test::tolerance<T>, statistics = test::tolerance<A>;
  for (Norm kind : kinds)
    for (auto [rows, columns] : sizes)
      for (int parts = 0; parts < 4; ++parts) {
        Case<T> c(kind, rows, columns);
        const auto branch = (parts & 1) != 0 ? Branch::yes : Branch::no;
        const auto bias = (parts & 2) != 0 ? Bias::yes : Bias::no;
        c.forward(branch, bias);
        std::vector<T> sum = c.x;
        if (branch == Branch::yes) {
          for (std::size_t i = 0; i < sum.size(); ++i) sum[i] = T(A(c.x[i]) + A(c.branch[i]));
          EXPECT_TRUE(test::same_bits(on_host<T>(c.device, c.residual), sum));
        }
        const auto wanted = reference::norm_forward(kind, in_double(sum), {}, in_double(c.weight),
                                                    bias == Bias::yes ? in_double(c.bias) : std::vector<double>{});
        EXPECT_TRUE(near(on_host<T>(c.device, c.y), wanted.y, tolerance)) << rows << "x" << columns;
        // The reciprocal deviation of a single column is 316 times as sensitive as the value.
        if (columns > 1) {
          EXPECT_TRUE(near(on_host<A>(c.device, c.rstd), wanted.rstd, statistics));
        }
        if (kind == Norm::layer) {
          EXPECT_TRUE(near(on_host<A>(c.device, c.mean), wanted.mean, statistics));
        }
      }
}

TYPED_TEST(Normalize, ResidualMayBeWrittenOverX) {
  using T = TypeParam;
  Case<T> apart(Norm::layer, 5, 33), in_place(Norm::layer, 5, 33);
  apart.forward(Branch::yes, Bias::yes);
  const Tensor x = in_place.put(in_place.x);
  norm_forward(in_place.device.compute(), Norm::layer,
               {.y = in_place.y,
                .residual_out = x,
                .mean = in_place.mean,
                .rstd = in_place.rstd,
                .x = x,
                .branch = in_place.put(in_place.branch),
                .weight = in_place.row(in_place.weight),
                .bias = in_place.row(in_place.bias)});
  EXPECT_TRUE(test::same_bits(on_host<T>(in_place.device, in_place.y), on_host<T>(apart.device, apart.y)));
  EXPECT_TRUE(test::same_bits(on_host<T>(in_place.device, x), on_host<T>(apart.device, apart.residual)));
}

TYPED_TEST(Normalize, BackwardAddsTheReference) {
  using T = TypeParam;
  for (Norm kind : kinds)
    for (auto [rows, columns] : sizes) {
      if (columns == 1) continue;  // the result is only cancellation
      Case<T> c(kind, rows, columns);
      c.forward(Branch::no, Bias::no);
      const auto before = uniform<T>(rows * columns, 6);
      const Tensor dx = c.put(before);
      norm_backward(c.device.compute(), kind, c.into(dx));
      auto wanted = reference::norm_backward(kind, in_double(c.dy), in_double(c.x), in_double(c.weight)).dx;
      for (std::size_t i = 0; i < wanted.size(); ++i) wanted[i] += static_cast<double>(before[i]);
      EXPECT_TRUE(near(on_host<T>(c.device, dx), wanted, test::tolerance<T>)) << rows << "x" << columns;
    }
}

TYPED_TEST(Normalize, WeightGradientEqualsReferenceForEveryBeta) {
  using T = TypeParam;
  using A = Accumulator<T>;
  for (Norm kind : kinds)
    for (auto [rows, columns] : sizes)
      for (float beta : {0.0f, 1.0f, 0.5f}) {
        Case<T> c(kind, rows, columns);
        c.forward(Branch::no, Bias::no);
        const auto before = uniform<A>(columns, 7);
        const auto start = [&] { return beta == 0 ? poisoned<A>(c.device, {columns}) : on_device(c.device, before); };
        const Gradient dw{start(), beta}, db{kind == Norm::layer ? start() : Tensor{}, beta};
        norm_weight_gradient(c.device.compute(), c.arena, kind, dw, db, c.into({}));
        auto wanted = reference::norm_backward(kind, in_double(c.dy), in_double(c.x), in_double(c.weight));
        for (std::size_t i = 0; i < before.size(); ++i) {
          wanted.dweight[i] += beta * static_cast<double>(before[i]);
          wanted.dbias[i] += beta * static_cast<double>(before[i]);
        }
        const double tolerance = 10 * test::tolerance<A>;  // sums over rows of numbers of either sign
        EXPECT_TRUE(near(on_host<A>(c.device, dw.sum), wanted.dweight, tolerance)) << rows << "x" << columns;
        if (db.sum) {
          EXPECT_TRUE(near(on_host<A>(c.device, db.sum), wanted.dbias, tolerance)) << rows << "x" << columns;
        }
      }
}

// A GPU's blocks fetch rows ahead. Fewer and more of them than are under way at once, one to four packs a thread;
// several rows a block and one, more blocks than stay.
constexpr Size gradient_sizes[] = {{9, 33},     {70, 40},   {8200, 40}, {1, 768},   {133, 776}, {9, 1040},
                                   {300, 1600}, {45, 2056}, {39, 4104}, {35, 6152}, {33, 8192}};

TYPED_TEST(Normalize, GradientsInOnePassEqualReference) {
  using T = TypeParam;
  using A = Accumulator<T>;
  for (Norm kind : kinds)
    for (auto [rows, columns] : gradient_sizes) {
      Case<T> c(kind, rows, columns);
      c.forward(Branch::no, Bias::no);
      const auto before = uniform<T>(rows * columns, 6);
      const Tensor dx = c.put(before);
      const Gradient dw{poisoned<A>(c.device, {columns})},
          db{kind == Norm::layer ? poisoned<A>(c.device, {columns}) : Tensor{}};
      norm_gradients(c.device.compute(), c.arena, kind, dw, db, c.into(dx));
      auto wanted = reference::norm_backward(kind, in_double(c.dy), in_double(c.x), in_double(c.weight));
      for (std::size_t i = 0; i < before.size(); ++i) wanted.dx[i] += static_cast<double>(before[i]);
      EXPECT_TRUE(near(on_host<T>(c.device, dx), wanted.dx, test::tolerance<T>)) << rows << "x" << columns;
      const double tolerance = 10 * test::tolerance<A>;  // sums over rows of numbers of either sign
      EXPECT_TRUE(near(on_host<A>(c.device, dw.sum), wanted.dweight, tolerance)) << rows << "x" << columns;
      if (db.sum) {
        EXPECT_TRUE(near(on_host<A>(c.device, db.sum), wanted.dbias, tolerance)) << rows << "x" << columns;
      }
    }
}

// A GPU's blocks stay and take many rows each.
TEST(NormRows, DoNotDependOnHowManyThereAre) {
  constexpr std::int64_t few_rows = 7;
  const auto repeated = [](std::vector<bf16>& to, const std::vector<bf16>& from) {
    for (std::size_t i = 0; i < to.size(); ++i) to[i] = from[i % from.size()];
  };
  for (Norm kind : kinds)
    for (auto [rows, columns] : {Size{16002, 8}, {9604, 776}, {2401, 2056}}) {
      Case<bf16> few(kind, few_rows, columns), many(kind, rows, columns);
      repeated(many.x, few.x), repeated(many.branch, few.branch), repeated(many.dy, few.dy);
      const auto whole = [&](const std::vector<bf16>& values) {
        std::vector<bf16> all(many.x.size());
        repeated(all, values);
        return all;
      };
      std::vector<bf16> dx[2];
      for (Case<bf16>* c : {&few, &many}) {
        c->forward(Branch::yes, Bias::yes);
        const Tensor d = c->put(c->branch);
        NormBackward args = c->into(d);
        args.x = c->residual;
        norm_gradients(c->device.compute(), c->arena, kind, {poisoned<float>(c->device, {columns})}, {}, args);
        dx[c == &many ? 1 : 0] = on_host<bf16>(c->device, d);
      }
      EXPECT_TRUE(test::same_bits(on_host<bf16>(many.device, many.y), whole(on_host<bf16>(few.device, few.y))));
      EXPECT_TRUE(test::same_bits(on_host<bf16>(many.device, many.residual),
                                  whole(on_host<bf16>(few.device, few.residual))));
      EXPECT_TRUE(test::same_bits(dx[1], whole(dx[0]))) << rows << "x" << columns;
    }
}

TYPED_TEST(Normalize, CapturedGradientsHaveTheBitsOfThoseLaunched) {
  using T = TypeParam;
  using A = Accumulator<T>;
  for (Norm kind : kinds) {
    Case<T> c(kind, 300, 776);
    Stream& stream = c.device.compute();
    if (!stream.native()) GTEST_SKIP() << "only a GPU's streams can be captured";
    c.forward(Branch::no, Bias::no);
    const Tensor before = c.put(c.branch), dx = poisoned<T>(c.device, before.shape);
    const NormBackward args = c.into(dx);
    const Gradient dw{poisoned<A>(c.device, {c.columns})},
        db{kind == Norm::layer ? poisoned<A>(c.device, {c.columns}) : Tensor{}};
    const auto gradients = [&] {
      copy(stream, dx, before);
      norm_gradients(stream, c.arena, kind, dw, db, args);
    };
    gradients();
    const auto launched = on_host<T>(c.device, dx);
    const auto launched_sums = on_host<A>(c.device, dw.sum);
    const Graph graph = stream.capture(gradients);
    for (int replay = 0; replay < 3; ++replay) {
      clear(stream, dx), clear(stream, dw.sum);
      stream.run(graph);
      EXPECT_TRUE(test::same_bits(on_host<T>(c.device, dx), launched));
      EXPECT_TRUE(test::same_bits(on_host<A>(c.device, dw.sum), launched_sums));
    }
  }
}

TYPED_TEST(Normalize, NoRows) {
  using T = TypeParam;
  using A = Accumulator<T>;
  Case<T> c(Norm::layer, 0, 33);
  c.forward(Branch::yes, Bias::yes);
  norm_backward(c.device.compute(), c.kind, c.into(c.put({})));
  const Gradient dw{poisoned<A>(c.device, {33}), 0}, db{on_device(c.device, std::vector<A>(33, A(2))), 1};
  norm_weight_gradient(c.device.compute(), c.arena, c.kind, dw, db, c.into({}));
  EXPECT_TRUE(test::same_bits(on_host<A>(c.device, dw.sum), std::vector<A>(33, A(0))));
  EXPECT_TRUE(test::same_bits(on_host<A>(c.device, db.sum), std::vector<A>(33, A(2))));
}

TYPED_TEST(Normalize, NanFillsItsRowAndNoOther) {
  using T = TypeParam;
  for (Norm kind : kinds) {
    SCOPED_TRACE(test::shown(kind));
    Case<T> c(kind, 3, 33);
    c.forward(Branch::no, Bias::yes);
    const auto clean = on_host<T>(c.device, c.y);
    c.x[33 + 32] = T(std::numeric_limits<float>::quiet_NaN());
    c.forward(Branch::no, Bias::yes);
    EXPECT_TRUE(test::all_nan(on_host<T>(c.device, c.y.row_range(1, 1))));
    for (std::int64_t r : {0, 2})
      EXPECT_TRUE(test::same_bits(on_host<T>(c.device, c.y.row_range(r, 1)),
                                  std::vector<T>(clean.begin() + r * 33, clean.begin() + (r + 1) * 33)));
    const Tensor dx = c.put(c.dy);
    norm_backward(c.device.compute(), kind, c.into(dx));
    EXPECT_TRUE(test::all_nan(on_host<T>(c.device, dx.row_range(1, 1))));
  }
}

TEST(NormGradients, AreTheDerivatives) {
  for (Norm kind : kinds) {
    SCOPED_TRACE(test::shown(kind));
    Case<double> c(kind, 4, 19);
    const bool biased = kind == Norm::layer;
    const auto value = [&] {
      c.forward(Branch::no, biased ? Bias::yes : Bias::no);
      const auto y = on_host<double>(c.device, c.y);
      return std::inner_product(y.begin(), y.end(), c.dy.begin(), 0.0);
    };
    value();
    const Tensor dx = c.put(std::vector<double>(c.x.size(), 0.0));
    norm_backward(c.device.compute(), kind, c.into(dx));
    const Gradient dw{poisoned<double>(c.device, {19}), 0}, db{biased ? poisoned<double>(c.device, {19}) : Tensor{}, 0};
    norm_weight_gradient(c.device.compute(), c.arena, kind, dw, db, c.into({}));
    const auto moved = [&](std::vector<double>& parameter) {
      return [&](const std::vector<double>& at) { parameter = at; return value(); };
    };
    EXPECT_TRUE(test::derivative_is(moved(c.x), std::vector(c.x), on_host<double>(c.device, dx), 1));
    EXPECT_TRUE(test::derivative_is(moved(c.weight), std::vector(c.weight), on_host<double>(c.device, dw.sum), 2));
    if (biased) {
      EXPECT_TRUE(test::derivative_is(moved(c.bias), std::vector(c.bias), on_host<double>(c.device, db.sum), 3));
    }
  }
}

TEST(NormChecks, RefuseWhatDoesNotFit) {
  Case<float> c(Norm::layer, 3, 7);
  Stream& s = c.device.compute();
  const Tensor x = c.put(c.x), w = c.row(c.weight), other = poisoned<float>(c.device, {3, 8});
  const Tensor narrow = w.flat(0, 6);
  const NormForward forward{.y = c.y, .mean = c.mean, .rstd = c.rstd, .x = x, .weight = w};
  EXPECT_NO_THROW(norm_forward(s, Norm::layer, forward));
  const auto with = [](auto args, Tensor std::remove_cvref_t<decltype(args)>::*changed, const Tensor& to) {
    args.*changed = to;
    return args;
  };
  EXPECT_THROW(norm_forward(s, Norm::layer, with(forward, &NormForward::y, other)), Error);
  EXPECT_THROW(norm_forward(s, Norm::layer, with(forward, &NormForward::branch, x)), Error) << "nowhere to put the sum";
  EXPECT_THROW(norm_forward(s, Norm::layer, with(forward, &NormForward::mean, {})), Error);
  EXPECT_THROW(norm_forward(s, Norm::layer, with(forward, &NormForward::weight, narrow)), Error);
  const NormBackward backward{.dx = c.put(c.dy), .dy = x, .x = x, .rstd = c.rstd, .weight = w};
  EXPECT_NO_THROW(norm_backward(s, Norm::rms, backward));
  EXPECT_THROW(norm_backward(s, Norm::rms, with(backward, &NormBackward::dx, other)), Error);
  EXPECT_THROW(norm_weight_gradient(s, c.arena, Norm::rms, {other, 0}, {}, backward), Error);
  EXPECT_THROW(norm_gradients(s, c.arena, Norm::rms, {narrow, 0}, {}, backward), Error);
  EXPECT_THROW(norm_gradients(s, c.arena, Norm::rms, {w, 0}, {narrow, 0}, backward), Error);
  EXPECT_THROW(norm_gradients(s, c.arena, Norm::rms, {w, 0}, {}, with(backward, &NormBackward::weight, narrow)), Error);
}

}  // namespace
}  // namespace tessera
