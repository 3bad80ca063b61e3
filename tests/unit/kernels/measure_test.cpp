// Statistics of quantizers. Every field equals the serial reference's, for every format, side and purpose. Those of
// parts of a weight add up to those of the whole.
#include <gtest/gtest.h>

#include "kernels/activation/activation.hpp"
#include "kernels/convert/convert.hpp"
#include "kernels/quantize/draws.hpp"
#include "kernels/quantize/square_window.hpp"
#include "tests/reference/measure.hpp"
#include "tests/support/quantized_case.hpp"

namespace tessera {
namespace {

using formats::Matrix;

constexpr Purpose purposes[] = {Purpose::activation, Purpose::gradient, Purpose{Purpose::Role::activation},
                                Purpose{Purpose::Role::gradient, true, false},
                                Purpose{Purpose::Role::gradient, false, true}};
constexpr Matrix sizes[] = {{16, 48}, {32, 96}, {160, 160}};

Tensor cleared(Device& device) {
  const Tensor sums = device.allocate(Category::staging, DType::u64, {QuantizerSums::words});
  clear(device.compute(), sums);
  return sums;
}

QuantizerSums read(Device& device, const Tensor& sums) {
  QuantizerSums read;
  device.download(device.compute(), &read, sums);
  return read;
}

void expect_same(const QuantizerSums& a, const reference::Statistics& b, const std::string& where) {
  EXPECT_EQ(a.elements, b.elements) << where;
  EXPECT_EQ(a.zeros, b.zeros) << where;
  EXPECT_EQ(a.nan, b.nan) << where;
  EXPECT_EQ(a.infinite, b.infinite) << where;
  EXPECT_EQ(a.saturated, b.saturated) << where;
  EXPECT_EQ(a.underflow, b.underflow) << where;
  EXPECT_EQ(a.amax, std::bit_cast<std::uint32_t>(b.amax)) << where;
  EXPECT_TRUE(std::ranges::equal(a.exponents, b.exponents)) << where;
  EXPECT_TRUE(reference::natural(a.values) == b.values) << where;
  EXPECT_TRUE(reference::natural(a.errors) == b.errors) << where;
}

/// Which rows of a matrix count: with gaps all but some, and but for one whole band of sixteen.
std::vector<std::int32_t> tokens_of(std::int64_t rows) {
  std::vector<std::int32_t> tokens;
  for (std::int64_t r = 0; r < rows; ++r) tokens.push_back(r / 16 == 1 || r % 7 == 3 ? -1 : static_cast<int>(r));
  return tokens;
}
std::vector<bool> counted_rows(const std::vector<std::int32_t>& tokens, bool rotated) {
  std::vector<bool> counted;
  for (std::size_t r = 0; r < tokens.size(); ++r) {
    const auto first = tokens.begin() + static_cast<std::ptrdiff_t>(r / 16 * 16),
               end = tokens.begin() + static_cast<std::ptrdiff_t>(std::min(tokens.size(), r / 16 * 16 + 16));
    counted.push_back(rotated ? std::any_of(first, end, [](std::int32_t t) { return t >= 0; }) : tokens[r] >= 0);
  }
  return counted;
}

template <class F>
struct Measure : ::testing::Test {
  Device device;

  void compare(test::Case<F>& c, Purpose purpose, Side side, const std::vector<std::int32_t>& tokens) {
    const bool rotated = F::hadamard && purpose.rotates && side == Side::columnwise,
               at_random = formats::may_draw<F> && purpose.draws;
    const Tensor sums = cleared(device);
    const Tensor on_device = tokens.empty() ? Tensor{} : test::on_device(device, tokens);
    measure_copy(device.compute(), formats::id_of<F>, c.item, purpose, side, {}, on_device, sums);
    std::vector<float> x = reference::rounded_to_bf16(c.values);
    if (rotated) x = reference::hadamard(c.matrix, x);
    reference::DrawByte draw;
    if (at_random) {
      std::vector<std::int64_t> rows;
      for (std::int64_t r = 0; r < c.matrix.rows; ++r) rows.push_back(77 + r);
      draw = reference::draw_bytes(quantizer::draw_key(11, side == Side::rowwise ? 12 : 13, 5), rows, c.matrix.columns);
    }
    std::vector<std::int32_t> all = tokens;
    if (all.empty()) all.assign(static_cast<std::size_t>(c.matrix.rows), 0);
    expect_same(read(device, sums), reference::measure<F>(side, c.matrix, x, counted_rows(all, rotated), draw),
                std::string(F::name) + " " + name_of(side) + " " + Shape{c.matrix.rows, c.matrix.columns}.text());
  }
};
TYPED_TEST_SUITE(Measure, test::EveryFormat);

TYPED_TEST(Measure, GivesTheReferencesFields) {
  using F = TypeParam;
  if constexpr (!formats::is_plain<F>) {
    const Tensor step = test::on_device(this->device, std::vector<std::uint64_t>{5});
    for (const Matrix m : sizes)
      for (const bool odd : {false, true})
        for (const Purpose purpose : purposes) {
          if (!formats::takes<F>(Side::rowwise, m) || !formats::takes<F>(Side::columnwise, m)) continue;
          test::Case<F> c(this->device, m, 1, DType::bf16, 3, odd);
          c.item.draws = {11, 12, 13, step, 77, {}};
          quantize_one(this->device.compute(), formats::id_of<F>, c.item, purpose);
          for (const Side side : {Side::rowwise, Side::columnwise}) {
            this->compare(c, purpose, side, odd ? tokens_of(m.rows) : std::vector<std::int32_t>());
          }
        }
  }
}

/// Drawn cuts of all positions, some of them empty.
std::vector<std::int64_t> cuts_of(std::int64_t n, std::uint64_t seed) {
  std::mt19937_64 bits(seed);
  std::vector<std::int64_t> cuts{0, n};
  for (int i = 0; i < 6; ++i) cuts.push_back(static_cast<std::int64_t>(bits() % static_cast<std::uint64_t>(n + 1)));
  cuts.push_back(cuts.back());
  std::ranges::sort(cuts);
  return cuts;
}

template <class F>
void compare_parts(Device& device, Matrix m, Side side, bool odd) {
  constexpr std::int64_t members = 3;
  const std::vector<float> values = test::wild(members * m.elements(), 7, odd);
  const Tensor all = test::on_device(device, values);
  const Tensor tops =
                   device.allocate(Category::staging, DType::bf16, {block_tops(formats::id_of<F>, side, m, members)}),
               amaxes = test::poisoned<float>(device, {members}), sums = cleared(device),
               errors = device.allocate(Category::staging, DType::u64,
                                        {block_errors(formats::id_of<F>, side, m, members)});
  clear(device.compute(), tops);
  clear(device.compute(), errors);
  const std::vector<std::int64_t> cuts = cuts_of(members * m.elements(), 5);
  const auto each_part = [&](const auto& f) {
    for (std::size_t i = 0; i + 1 < cuts.size(); ++i)
      f(MasterPart{m, members, cuts[i], all.flat(cuts[i], cuts[i + 1] - cuts[i])});
  };
  each_part([&](const MasterPart& part) { raise_tops(device.compute(), formats::id_of<F>, side, part, tops); });
  amaxes_of_tops(device.compute(), tops, amaxes);
  each_part([&](const MasterPart& part) {
    add_errors(device.compute(), formats::id_of<F>, side, part, tops, amaxes, errors);
  });
  each_part([&](const MasterPart& part) {
    measure_part(device.compute(), formats::id_of<F>, side, part, tops, amaxes, errors, sums);
  });
  reference::Statistics whole;
  const std::vector<bool> counted(static_cast<std::size_t>(m.rows), true);
  for (std::int64_t e = 0; e < members; ++e) {
    const std::vector<float> member(values.begin() + e * m.elements(), values.begin() + (e + 1) * m.elements());
    whole.add(reference::measure<F>(side, m, reference::rounded_to_bf16(member), counted));
  }
  expect_same(read(device, sums), whole, std::string(F::name) + " parts " + name_of(side));
}

TYPED_TEST(Measure, AddsThePartsOfAWeight) {
  using F = TypeParam;
  if constexpr (!formats::is_plain<F> && !formats::by_lines<F>)
    for (const Matrix m : {Matrix{32, 96}, Matrix{160, 144}})
      for (const bool odd : {false, true})
        for (const Side side : {Side::rowwise, Side::columnwise}) {
          if (side == Side::columnwise && F::columnwise != formats::Columnwise::requantized) continue;
          if (formats::takes<F>(side, m)) compare_parts<F>(this->device, m, side, odd);
        }
}

/// The most that a window may hold, and drawn sums, are those of the reference; parts that meet in a limb carry.
TEST(SquareWindow, HoldsExactSums) {
  using quantizer::measure::SquareWindow;
  std::mt19937_64 bits(9);
  for (const int least : {1, 2, 15, 16, 100, 223})
    for (const bool most : {false, true}) {
      SquareWindow window;
      reference::Natural expected;
      for (int i = 0; i < SquareWindow::most; ++i) {
        const int above = most ? SquareWindow::exponents - 1 : static_cast<int>(bits() % SquareWindow::exponents);
        const std::uint32_t significand = most ? 0xFFFFFFu : 0x800000u | static_cast<std::uint32_t>(bits() & 0x7FFFFFu);
        window.add(std::uint64_t{significand} * significand, above);
        reference::add_square(expected, std::bit_cast<float>(static_cast<std::uint32_t>(least + above) << 23 |
                                                             (significand & 0x7FFFFFu)));
      }
      std::uint64_t limbs[ExactSum::limbs] = {};
      for (int i = 0; i < SquareWindow::parts; ++i)
        quantizer::measure::each_digit(window.part(i), 2 * least + 16 * i,
                                       [&](int limb, std::uint64_t digit) { limbs[limb] += digit; });
      EXPECT_TRUE(reference::natural(limbs) == expected) << least << (most ? ", the most" : ", drawn");
    }
}

/// What a quantizer computes on the way counts as the same values stored.
TEST(MeasureComputed, CountsAsTheStoredValues) {
  using F = formats::Fp8BlockOneD;
  constexpr FormatId format = formats::id_of<F>;
  Device device;
  for (const Matrix m : {Matrix{16, 128}, Matrix{144, 256}}) {
    const Shape one{m.rows, m.columns}, two{m.rows, 2 * m.columns};
    const Tensor pre = test::on_device(device, one, test::uniform<bf16>(one.elements(), 1, -8, 8)),
                 dy = test::on_device(device, one, test::uniform<bf16>(one.elements(), 2)),
                 gate_up = test::on_device(device, two, test::uniform<bf16>(two.elements(), 3, -8, 8)),
                 y = test::poisoned<bf16>(device, one), wide = test::poisoned<bf16>(device, two);
    const auto compare = [&](const QuantizerInput& input, const Tensor& values) {
      QuantizedMatrix matrix;
      matrix.matrix = {values.rows(), values.columns()};
      matrix.values = values;
      for (const Side side : {Side::rowwise, Side::columnwise}) {
        const Tensor of_input = cleared(device), of_values = cleared(device);
        measure_copy(device.compute(), format, matrix, Purpose::gradient, side, {}, {}, of_values);
        matrix.values.data = nullptr;
        measure_copy(device.compute(), format, matrix, Purpose::gradient, side, input, {}, of_input);
        matrix.values = values;
        EXPECT_TRUE(test::same_bits(test::on_host<std::uint64_t>(device, of_input),
                                    test::on_host<std::uint64_t>(device, of_values)))
            << input.index() << " " << name_of(side);
      }
    };
    gelu_forward(device.compute(), y, pre);
    compare(Gelu{pre}, y);
    gelu_backward(device.compute(), y, dy, pre);
    compare(GeluGradient{dy, pre}, y);
    swiglu_forward(device.compute(), y, gate_up);
    compare(Swiglu{gate_up}, y);
    swiglu_backward(device.compute(), wide, dy, gate_up);
    compare(SwigluGradient{dy, gate_up}, wide);
  }
}

}  // namespace
}  // namespace tessera
