// Products of FP8 codes in the shapes of layers and of experts equal products of the decoded values.
#include <gtest/gtest.h>

#include <random>

#include "kernels/activation/activation.hpp"
#include "kernels/base/runtime.hpp"
#include "kernels/convert/convert.hpp"
#include "kernels/gemm/gemm.hpp"
#include "tests/support/coded_factor.hpp"
#include "tests/support/shown.hpp"

namespace tessera {
namespace {

using test::close, test::Factor;
using Blocks = test::FormatsOfBlocks;
using Tensors = test::FormatsOfTensors;

// Products of FP8 codes in the shapes of layers, which tensor cores may multiply as codes.
template <class P>
struct Fp8Layer : ::testing::TestWithParam<std::array<std::int64_t, 3>> {
  const std::int64_t tokens = GetParam()[0], wide_in = GetParam()[1], wide_out = GetParam()[2];
  Device device;
  Stream& stream = device.compute();
  Factor<typename P::Value> x{device, {tokens, wide_in}, 1, 1};
  Factor<typename P::Slope> dy{device, {tokens, wide_out}, 1, 2};
  Factor<typename P::Weight> w{device, {wide_out, wide_in}, 1, 3};

  void expect_products_of_decoded();
  void expect_bias_and_gelu();
  void expect_replays();
  void expect_products_added();

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

template <class P>
void Fp8Layer<P>::expect_products_of_decoded() {
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

template <class P>
void Fp8Layer<P>::expect_bias_and_gelu() {
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

template <class P>
void Fp8Layer<P>::expect_replays() {
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
  quantize_one(stream, formats::id_of<typename P::Value>, x.item, Purpose::activation);
  products();
  const auto y_eager = test::on_host<bf16>(device, y);
  const auto dw_eager = test::on_host<float>(device, dw);
  clear(stream, y), clear(stream, dw);
  stream.run(graph);
  EXPECT_TRUE(test::same_bits(test::on_host<bf16>(device, y), y_eager));
  EXPECT_TRUE(test::same_bits(test::on_host<float>(device, dw), dw_eager));
  EXPECT_FALSE(test::same_bits(y_eager, first));
}

// A product is finished, then added to what was there: a tensor's scale is a power of two, so that a fused sum is
// rounded as often.
template <class P>
void Fp8Layer<P>::expect_products_added() {
  const Tensor dw = test::poisoned<float>(device, {wide_out, wide_in}), sum = test::poisoned<float>(device, dw.shape);
  const std::int64_t n = dw.elements();
  const auto before = test::uniform<float>(n, 11, -300, 300);
  device.upload(stream, sum, before.data());
  linear_weight_gradient(stream, {dw}, dy.operand(Side::columnwise), x.operand(Side::columnwise));
  linear_weight_gradient(stream, {sum, 1}, dy.operand(Side::columnwise), x.operand(Side::columnwise));
  auto wanted = test::on_host<float>(device, dw);
  for (std::size_t i = 0; i < wanted.size(); ++i) wanted[i] += before[i];
  EXPECT_TRUE(test::same_bits(test::on_host<float>(device, sum), wanted));
}

struct Fp8Blocks : Fp8Layer<Blocks> {};
struct Fp8Tensors : Fp8Layer<Tensors> {};
TEST_P(Fp8Blocks, AreThoseOfTheirDecodedValues) { expect_products_of_decoded(); }
TEST_P(Fp8Tensors, AreThoseOfTheirDecodedValues) { expect_products_of_decoded(); }
TEST_P(Fp8Blocks, TakeTheirBiasAndAGelusGradient) { expect_bias_and_gelu(); }
TEST_P(Fp8Tensors, TakeTheirBiasAndAGelusGradient) { expect_bias_and_gelu(); }
TEST_P(Fp8Tensors, AreFinishedBeforeTheyAreAdded) {
  if (Runtime::back_end() != "Cuda") GTEST_SKIP() << "libraries of the host add as they sum";
  expect_products_added();
}

// A captured product reads everything from the device, scales too.
TEST_P(Fp8Blocks, CapturedReadTheScalesOfTheirReplay) {
  if (Runtime::back_end() != "Cuda") GTEST_SKIP() << "no capture on the host";
  expect_replays();
}
TEST_P(Fp8Tensors, CapturedReadTheScalesOfTheirReplay) {
  if (Runtime::back_end() != "Cuda") GTEST_SKIP() << "no capture on the host";
  expect_replays();
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
INSTANTIATE_TEST_SUITE_P(Layers, Fp8Tensors, ::testing::ValuesIn(layer_shapes()));

// The same of experts: the first, one in the middle and the last have no rows, and rows lie behind the last.
template <class P>
struct Fp8Mixture : Fp8Layer<P> {
  using Layer = Fp8Layer<P>;
  using Layer::columns_of, Layer::compare, Layer::decoded, Layer::device, Layer::dy, Layer::rounded, Layer::rows_of,
      Layer::stream, Layer::summed, Layer::tokens, Layer::wide_in, Layer::wide_out, Layer::x;

  static constexpr std::int64_t count = 6;
  Factor<typename P::Weight> grouped{device, {wide_out, wide_in}, count, 3};
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

  void expect_products_of_decoded();
  void expect_own_rows();
  void expect_replays();
};

template <class P>
void Fp8Mixture<P>::expect_products_of_decoded() {
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

template <class P>
void Fp8Mixture<P>::expect_own_rows() {
  const std::int64_t size = wide_out * wide_in;
  const Tensor dw = test::poisoned<float>(device, {count * wide_out, wide_in}),
               offsets = test::on_device(device, begins);
  const auto x_columns = decoded(x, Side::columnwise), dy_columns = decoded(dy, Side::columnwise);
  for (const float beta : {0.0f, 1.0f}) {
    SCOPED_TRACE(test::shown(beta));
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

template <class P>
void Fp8Mixture<P>::expect_replays() {
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

struct Fp8Experts : Fp8Mixture<Blocks> {};
struct Fp8TensorExperts : Fp8Mixture<Tensors> {};
TEST_P(Fp8Experts, AreThoseOfTheirDecodedValues) { expect_products_of_decoded(); }
TEST_P(Fp8TensorExperts, AreThoseOfTheirDecodedValues) { expect_products_of_decoded(); }
TEST_P(Fp8Experts, SumTheirOwnRowsInWeightGradients) { expect_own_rows(); }
TEST_P(Fp8TensorExperts, SumTheirOwnRowsInWeightGradients) { expect_own_rows(); }

// A captured product reads everything from the device, the counts of rows too. Its bits are repeatable.
TEST_P(Fp8Experts, CapturedReadTheCountsOfTheirReplay) {
  if (Runtime::back_end() != "Cuda") GTEST_SKIP() << "no capture on the host";
  expect_replays();
}
TEST_P(Fp8TensorExperts, CapturedReadTheCountsOfTheirReplay) {
  if (Runtime::back_end() != "Cuda") GTEST_SKIP() << "no capture on the host";
  expect_replays();
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
INSTANTIATE_TEST_SUITE_P(Layers, Fp8TensorExperts, ::testing::ValuesIn(expert_shapes()));

}  // namespace
}  // namespace tessera
