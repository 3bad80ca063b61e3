#include "kernels/quantize/quantize.hpp"

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>

#include "kernels/convert/convert.hpp"
#include "kernels/digest/digest.hpp"
#include "tests/support/quantized_case.hpp"

namespace tessera {
namespace {

using formats::Matrix;
using test::Case;
using test::Guarded;
using test::GuardedCopy;

template <class F>
std::vector<Case<F>> cases(Device& device, DType type, std::int64_t widest) {
  std::vector<Case<F>> list;
  for (const Matrix& m : test::shapes()) {
    if (m.columns > widest) continue;
    const bool made = formats::takes<F>(Side::rowwise, m) || formats::takes<F>(Side::columnwise, m);
    if (made && m.elements() > 0)
      list.emplace_back(device, m, list.size() % 5 == 2 ? 3 : 1, type, list.size(), list.size() % 2 == 1);
  }
  return list;
}
template <class F>
std::vector<QuantizedMatrix> items(const std::vector<Case<F>>& list) {
  std::vector<QuantizedMatrix> matrices;
  for (const Case<F>& c : list) matrices.push_back(c.item);
  return matrices;
}

template <class F>
struct Quantize : ::testing::Test {
  Device device;
};
TYPED_TEST_SUITE(Quantize, test::EveryFormat);

TYPED_TEST(Quantize, EqualsTheReferenceForEveryShapeInOneLaunch) {
  const struct {
    DType type;
    Precision precision;
  } modes[] = {
      {DType::bf16, Precision::bf16_first}, {DType::f32, Precision::bf16_first}, {DType::f32, Precision::as_given}};
  for (const auto& mode : modes) {
    const auto list = cases<TypeParam>(this->device, mode.type, mode.type == DType::bf16 ? 2880 : 288);
    quantize(this->device.compute(), test::placed(this->device, formats::id_of<TypeParam>, items(list)),
             mode.precision);
    const auto seen = [&](const std::vector<float>& x) {
      return mode.precision == Precision::as_given ? x : reference::rounded_to_bf16(x);
    };
    for (const auto& c : list)
      for (Side side : {Side::rowwise, Side::columnwise})
        if (c.has[static_cast<int>(side)]) c.compare(this->device, side, seen);
  }
}

TYPED_TEST(Quantize, CoversEveryBf16) {
  Case<TypeParam> c(this->device, {256, 256}, 1, DType::f32, 0, false);
  for (std::uint32_t u = 0; u < 65536; ++u) c.values[u] = std::bit_cast<float>((u * 40503u & 0xFFFFu) << 16);
  this->device.upload(this->device.compute(), c.item.values, c.values.data());
  quantize(this->device.compute(), test::placed(this->device, formats::id_of<TypeParam>, {c.item}));
  for (Side side : {Side::rowwise, Side::columnwise}) c.compare(this->device, side, reference::rounded_to_bf16);
}

TYPED_TEST(Quantize, SpansWholeAreasAndPartsOfThemBothWays) {
  using F = TypeParam;
  Case<F> c(this->device, {544, 1056}, 1, DType::bf16, 5, false);
  const QuantizeTable table = test::placed(this->device, formats::id_of<F>, {c.item});
  const auto compare = [&] {
    for (Side side : {Side::rowwise, Side::columnwise}) c.compare(this->device, side, reference::rounded_to_bf16);
  };
  quantize(this->device.compute(), table);
  compare();
  if constexpr (!formats::is_plain<F> && F::columnwise != formats::Columnwise::requantized) {
    if (F::scaled) clear(this->device.compute(), c.item.columnwise.scales);
    if (F::columnwise == formats::Columnwise::transposed) clear(this->device.compute(), c.item.columnwise.data);
    build_columnwise(this->device.compute(), table);
    compare();
  }
}

TYPED_TEST(Quantize, TurnsCodesWhereverTheyStand) {
  using F = TypeParam;
  if constexpr (F::columnwise == formats::Columnwise::transposed) {
    Stream& stream = this->device.compute();
    Case<F> c(this->device, {272, 528}, 1, DType::bf16, 6, false);
    quantize(stream, test::placed(this->device, formats::id_of<F>, {c.item}));
    const std::int64_t bytes = c.item.rowwise.data.bytes();
    const Guarded row(this->device, DType::u8, bytes + 1), column(this->device, DType::u8, bytes + 1);
    QuantizedMatrix odd = c.item;  // no vector of codes is aligned
    odd.rowwise.data = row.inner.flat(1, bytes);
    odd.columnwise.data = column.inner.flat(1, bytes);
    const QuantizeTable table = test::placed(this->device, formats::id_of<F>, {odd});
    quantize(stream, table);
    clear(stream, odd.columnwise.data);
    if (F::scaled) clear(stream, odd.columnwise.scales);
    build_columnwise(stream, table);
    const auto expect_equal = [&](const Guarded& made, const GuardedCopy<F>& like) {
      auto codes = made.bytes(this->device);
      EXPECT_EQ(codes.front(), 0xFF);
      codes.erase(codes.begin());
      EXPECT_TRUE(made.untouched(this->device) && test::same_bits(codes, like.data.bytes(this->device))) << F::name;
    };
    expect_equal(row, c.rowwise);
    expect_equal(column, c.columnwise);
    for (Side side : {Side::rowwise, Side::columnwise}) c.compare(this->device, side, reference::rounded_to_bf16);
  }
}

TYPED_TEST(Quantize, OwnedRowsOfBlocksAddUpToTheWhole) {
  Case<TypeParam> c(this->device, {384, 256}, 2, DType::f32, 7, true);
  const std::int64_t total = 2 * 384 * 256;
  if (TypeParam::tensor_amax)
    find_amax(this->device.compute(), test::placed(this->device, formats::id_of<TypeParam>, {c.item}));
  const std::int64_t cuts[] = {0, 128 * 256, 512 * 256, 512 * 256, total};
  for (int i = 0; i + 1 < 5; ++i) {
    QuantizedMatrix part = c.item;
    part.values = c.item.values.flat(cuts[i], cuts[i + 1] - cuts[i]);
    part.begin = ElementIndex(cuts[i]);
    quantize_with_amax(this->device.compute(), test::placed(this->device, formats::id_of<TypeParam>, {part}));
  }
  for (Side side : {Side::rowwise, Side::columnwise}) c.compare(this->device, side, reference::rounded_to_bf16);
}

TYPED_TEST(Quantize, LeavesGapsBetweenMembersAlone) {
  using F = TypeParam;
  const Matrix m{32, 32};
  const std::int64_t stride = m.elements() + 64;
  const auto values = test::wild(2 * stride, 3, false);
  QuantizedMatrix item;
  item.matrix = m;
  item.members = 2;
  item.member_stride = stride;
  item.values =
      test::on_device(this->device, {stride + m.elements()}, std::vector<float>(values.begin(), values.end() - 64));
  Guarded data(this->device, DType::u8, formats::data_bytes<F>(stride + m.elements()));
  GuardedCopy<F> rest(this->device, Side::rowwise, m, 2);
  item.rowwise = rest.copy();
  item.rowwise.data = {data.inner.data, DType::u8, data.inner.shape};
  quantize(this->device.compute(), test::placed(this->device, formats::id_of<F>, {item}));
  const auto bytes = data.bytes(this->device);
  for (std::int64_t e = 0; e < 2; ++e) {
    const std::vector<float> x(values.begin() + e * stride, values.begin() + e * stride + m.elements());
    const auto begin = bytes.begin() + formats::data_bytes<F>(e * stride);
    const std::vector<std::uint8_t> made(begin, begin + formats::data_bytes<F>(m.elements()));
    EXPECT_TRUE(test::same_bits(made, reference::quantize<F>(Side::rowwise, m, reference::rounded_to_bf16(x)).data));
  }
  for (std::int64_t i = formats::data_bytes<F>(m.elements()); i < formats::data_bytes<F>(stride); ++i)
    EXPECT_EQ(bytes[static_cast<std::size_t>(i)], 0xFF);
}

TYPED_TEST(Quantize, GivesEqualBitsAHundredTimes) {
  using F = TypeParam;
  Case<F> c(this->device, {160, 96}, 2, DType::bf16, 11, true);
  const QuantizeTable table = test::placed(this->device, formats::id_of<F>, {c.item});
  std::vector<std::uint8_t> first;
  for (int run = 0; run < 100; ++run) {
    quantize(this->device.compute(), table);
    std::vector<std::uint8_t> bytes;
    for (const auto* copy : {&c.rowwise, &c.columnwise})
      for (const test::Guarded* g : {&copy->data, &copy->scales, &copy->amax}) {
        const auto more = g->bytes(this->device);
        bytes.insert(bytes.end(), more.begin(), more.end());
      }
    if (run == 0) first = bytes;
    ASSERT_TRUE(bytes == first) << run;
  }
}

TYPED_TEST(Quantize, KeepsTheOrderOfTheStreamReplayedToo) {
  using F = TypeParam;
  Stream& stream = this->device.compute();
  Case<F> c(this->device, {288, 544}, 1, DType::bf16, 12, false);
  const QuantizeTable table = test::placed(this->device, formats::id_of<F>, {c.item});
  const Tensor values = test::on_device(this->device, c.values),
               others = test::on_device(this->device, std::vector<float>(c.values.size(), 1e4f));
  const auto work = [&] {
    for (const Tensor& source : {others, values}) {
      convert(stream, c.item.values, source);
      quantize(stream, table);
    }
  };
  Graph graph;
  for (int round = 0; round < 4; ++round) {
    if (round == 1 && stream.captures()) graph = stream.capture(work);
    if (graph) stream.run(graph);
    else work();
    for (Side side : {Side::rowwise, Side::columnwise}) c.compare(this->device, side, reference::rounded_to_bf16);
  }
}

// ---- refusals, and conditions that must not change results

TYPED_TEST(Quantize, TakesNothingButNanOrInfinity) {
  using F = TypeParam;
  const Matrix m{128, 160};
  const float nan = std::nanf(""), infinity = std::numeric_limits<float>::infinity();
  for (const auto& pattern : {std::vector<float>{nan},
                              {-nan},
                              {infinity},
                              {-infinity, infinity},
                              {nan, -infinity, 0.0f},
                              {1.0f, -nan, 2.0f},
                              {-0.0f}}) {
    Case<F> c(this->device, m, 1, DType::f32, 1, false);
    for (std::size_t i = 0; i < c.values.size(); ++i) c.values[i] = pattern[i % pattern.size()];
    this->device.upload(this->device.compute(), c.item.values, c.values.data());
    quantize(this->device.compute(), test::placed(this->device, formats::id_of<F>, {c.item}));
    for (Side side : {Side::rowwise, Side::columnwise}) c.compare(this->device, side, reference::rounded_to_bf16);
  }
}

// Random bit patterns of fp32, quantized as given.
TYPED_TEST(Quantize, RoundsRandomFp32AsTheReferenceDoes) {
  using F = TypeParam;
  Case<F> c(this->device, {512, 512}, 1, DType::f32, 2, false);
  std::mt19937 bits(8);
  for (std::size_t i = 0; i < c.values.size(); ++i) {
    // Values of similar exponents in each block, so that few become zero beside the largest; every 61st is arbitrary.
    const std::uint32_t u = bits(), exponent = static_cast<std::uint32_t>(i / 4096 % 250) + (u >> 23) % 5;
    c.values[i] = std::bit_cast<float>(i % 61 == 0 ? u : (u & 0x807FFFFFu) | exponent << 23);
  }
  this->device.upload(this->device.compute(), c.item.values, c.values.data());
  quantize(this->device.compute(), test::placed(this->device, formats::id_of<F>, {c.item}), Precision::as_given);
  for (Side side : {Side::rowwise, Side::columnwise}) c.compare(this->device, side, [](const auto& x) { return x; });
}

// With an amax of 2688 and a 6 in each block the multiplier is 1: values are encoded as they are, around every
// midpoint.
TEST(Nvfp4, RoundsBesideEveryMidpoint) {
  using F = formats::Nvfp4OneD;
  Device device;
  std::vector<float> values;
  for (const float middle : {0.25f, 0.75f, 1.25f, 1.75f, 2.5f, 3.5f, 5.0f})
    for (int ulps = -500; ulps <= 500; ++ulps) {
      const float x = std::bit_cast<float>(
          static_cast<std::uint32_t>(static_cast<int>(std::bit_cast<std::uint32_t>(middle)) + ulps));
      values.push_back(values.size() % 2 == 0 ? x : -x);
    }
  const Matrix m{32, 256};
  std::vector<float> x(static_cast<std::size_t>(m.elements()), 6.0f);
  std::size_t next = 0;
  for (std::size_t i = 0; i < x.size(); ++i)
    if (i % 16 != 0) x[i] = values[next++ % values.size()];
  ASSERT_GT(next, values.size());
  x[0] = 2688.0f;
  Case<F> c(device, m, 1, DType::f32, 1, false);
  c.values = x;
  device.upload(device.compute(), c.item.values, x.data());
  quantize(device.compute(), test::placed(device, formats::id_of<F>, {c.item}), Precision::as_given);
  for (Side side : {Side::rowwise, Side::columnwise}) c.compare(device, side, [](const auto& v) { return v; });
}

TEST(QuantizeGolden, Nvfp4TileOfBothCopies) {
  Device device;
  std::ifstream file(std::filesystem::path(__FILE__).parent_path() / "../../oracle/formats.json");
  const auto golden = nlohmann::json::parse(file).at("nvfp4_2d_tile");
  const auto number = [](const nlohmann::json& hex) {
    return static_cast<std::uint32_t>(std::stoul(hex.get<std::string>(), nullptr, 16));
  };
  Case<formats::Nvfp4> c(device, {16, 16}, 1, DType::f32, 0, false);
  for (std::size_t i = 0; i < 256; ++i) c.values[i] = std::bit_cast<float>(number(golden["x"][i / 16][i % 16]));
  device.upload(device.compute(), c.item.values, c.values.data());
  quantize(device.compute(), test::placed(device, formats::id_of<formats::Nvfp4>, {c.item}));
  const auto rows = c.rowwise.data.bytes(device), columns = c.columnwise.data.bytes(device);
  for (std::size_t i = 0; i < 128; ++i) {
    EXPECT_EQ(rows[i], number(golden["rowwise"][i / 8][i % 8]));
    EXPECT_EQ(columns[i], number(golden["columnwise"][i / 8][i % 8]));
  }
  EXPECT_EQ(std::bit_cast<std::uint32_t>(test::on_host<float>(device, c.rowwise.amax.inner)[0]),
            number(golden["global_amax"]));
  EXPECT_EQ(c.rowwise.scales.bytes(device)[0], number(golden["scale_e4m3"]));
}

// Amaxes, scales, codes and decoded values of both copies, from the oracle's own arithmetic
// (tests/oracle/row_scale_cases.py).
TEST(QuantizeGolden, Nvfp4Rows) {
  using F = formats::Nvfp4Row;
  Device device;
  std::ifstream file(std::filesystem::path(__FILE__).parent_path() / "../../oracle/row_scales.json");
  const auto number = [](const nlohmann::json& hex) {
    return std::bit_cast<float>(static_cast<std::uint32_t>(std::stoul(hex.get<std::string>(), nullptr, 16)));
  };
  for (const auto& golden : nlohmann::json::parse(file)) {
    const Matrix m{std::ssize(golden["x"]), std::ssize(golden["x"][0])};
    const auto at = [&](const nlohmann::json& rows, std::int64_t r, std::int64_t c) {
      return rows[static_cast<std::size_t>(r)][static_cast<std::size_t>(c)];
    };
    Case<F> c(device, m, 1, DType::f32, 0, false);
    for (std::int64_t i = 0; i < m.elements(); ++i)
      c.values[static_cast<std::size_t>(i)] = number(at(golden["x"], i / m.columns, i % m.columns));
    device.upload(device.compute(), c.item.values, c.values.data());
    const QuantizeTable table = test::placed(device, formats::id_of<F>, {c.item});
    quantize(device.compute(), table);
    for (const Side side : {Side::rowwise, Side::columnwise}) {
      SCOPED_TRACE(name_of(side));
      const auto& wanted = golden[name_of(side)];
      const test::GuardedCopy<F>& made = side == Side::rowwise ? c.rowwise : c.columnwise;
      std::vector<float> amaxes;
      for (const auto& word : wanted["amaxes"]) amaxes.push_back(number(word));
      EXPECT_TRUE(test::same_bits(test::on_host<float>(device, made.amax.inner), amaxes));
      const auto codes = made.data.bytes(device), scales = made.scales.bytes(device);
      QuantizedMatrix decoded = c.item;
      decoded.values = test::poisoned<bf16>(device, {m.elements()});
      decode_one(device.compute(), formats::id_of<F>, decoded, side);
      const auto factors = test::on_host<bf16>(device, decoded.values);
      const formats::Block b = formats::block_of<F>(side);
      for (std::int64_t r = 0; r < m.rows; ++r)
        for (std::int64_t k = 0; k < m.columns; ++k) {
          const auto place = static_cast<std::size_t>(
              reference::scale_places<F>(side, m, r / b.rows, k / b.columns).front());
          ASSERT_EQ(scales[place], at(wanted["scales"], r / b.rows, k / b.columns)) << r << " " << k;
          ASSERT_EQ(reference::get_code<F>(codes, reference::element_place<F>(side, m, r, k)),
                    at(wanted["codes"], r, k))
              << r << " " << k;
          ASSERT_EQ(factors[static_cast<std::size_t>(r * m.columns + k)].bits,
                    bf16(number(at(wanted["values"], r, k))).bits)
              << r << " " << k;
        }
    }
  }
}

// ---- activations and gradients

struct Rotated : ::testing::TestWithParam<Purpose> {
  Device device;
};

/// Codes of one side in one step.
RandomKey draw_key_of(const char* name, std::uint64_t step) { return {5, mix64(fnv1a64(name) + step)}; }

Draws draws_in(Device& device, std::uint64_t step, std::int64_t first_row, const Tensor& rows) {
  return {5, fnv1a64("sr:3:dy:row"), fnv1a64("sr:3:dy:col"), test::on_device<std::uint64_t>(device, {step}), first_row,
          rows};
}

template <class F>
void expect_the_reference_in_each_step(Device& device, Purpose purpose) {
  const std::int64_t width = 96;
  Case<F> c(device, {160, width}, 2, DType::f32, 21, true);
  std::vector<std::int64_t> rows;
  for (std::int64_t r = 0; r < 2 * 160; ++r) rows.push_back((std::int64_t{1} << 33) + 7 * r);
  c.item.draws = draws_in(device, 0, 0, test::on_device(device, rows));
  const QuantizeTable table = test::placed(device, formats::id_of<F>, {c.item});
  for (const std::uint64_t step : {std::uint64_t{9}, std::uint64_t{10}}) {
    device.upload(device.compute(), c.item.draws.step, &step);  // one table for all steps
    quantize(device.compute(), table, Precision::bf16_first, purpose);
    std::vector<reference::DrawByte> draws[2];
    if (purpose.draws)
      for (std::ptrdiff_t e = 0; e < 2; ++e) {
        const std::vector<std::int64_t> of_member(rows.begin() + e * 160, rows.begin() + (e + 1) * 160);
        draws[0].push_back(reference::draw_bytes(draw_key_of("sr:3:dy:row", step), of_member, width));
        draws[1].push_back(reference::draw_bytes(draw_key_of("sr:3:dy:col", step), of_member, width));
      }
    c.compare(device, Side::rowwise, reference::rounded_to_bf16, draws[0]);
    c.compare(
        device, Side::columnwise,
        [&](const auto& x) {
          const std::vector<float> rounded = reference::rounded_to_bf16(x);
          return purpose.rotates ? reference::hadamard(c.matrix, rounded) : rounded;
        },
        draws[1]);
  }
}

TEST_P(Rotated, EqualsTheReferenceInEachStep) {
  expect_the_reference_in_each_step<formats::Nvfp4OneD>(device, GetParam());
  expect_the_reference_in_each_step<formats::Nvfp4Row>(device, GetParam());
}

TEST_P(Rotated, NeedsAStepWhereItDraws) {
  Case<formats::Nvfp4OneD> c(device, {160, 96}, 2, DType::bf16, 23, true);
  const QuantizeTable table = test::placed(device, formats::id_of<formats::Nvfp4OneD>, {c.item});
  const auto run = [&] { quantize(device.compute(), table, Precision::bf16_first, GetParam()); };
  if (GetParam().draws)
    EXPECT_THROW(run(), Error);
  else
    EXPECT_NO_THROW(run());
}

TEST_P(Rotated, GivesEqualBitsAHundredTimes) {
  Case<formats::Nvfp4OneD> c(device, {160, 96}, 2, DType::bf16, 22, true);
  c.item.draws = draws_in(device, 9, 77, {});
  const QuantizeTable table = test::placed(device, formats::id_of<formats::Nvfp4OneD>, {c.item});
  std::vector<std::uint8_t> first;
  for (int run = 0; run < 100; ++run) {
    quantize(device.compute(), table, Precision::bf16_first, GetParam());
    std::vector<std::uint8_t> bytes;
    for (const Guarded* g : {&c.rowwise.data, &c.rowwise.scales, &c.columnwise.data, &c.columnwise.scales}) {
      const auto more = g->bytes(device);
      bytes.insert(bytes.end(), more.begin(), more.end());
    }
    if (run == 0) first = bytes;
    ASSERT_TRUE(bytes == first) << run;
  }
}
INSTANTIATE_TEST_SUITE_P(Purposes, Rotated, ::testing::Values(Purpose::activation, Purpose::gradient,
                                                               Purpose{Purpose::Role::gradient},
                                                               Purpose{Purpose::Role::gradient, false, true}));

TEST(Rotation, IsItsOwnInverseUpToSigns) {
  const Matrix m{16, 1};
  for (int unit = 0; unit < 16; ++unit) {
    std::vector<float> x(16);
    x[static_cast<std::size_t>(unit)] = 1;
    const auto y = reference::hadamard(m, x);
    const float sign = (0xD7E8 >> unit & 1) != 0 ? -1.0f : 1.0f;
    for (int r = 0; r < 16; ++r)
      EXPECT_EQ(y[static_cast<std::size_t>(r)],
                sign * (std::popcount(static_cast<unsigned>(r & unit)) % 2 == 0 ? 0.25f : -0.25f));
  }
}

}  // namespace
}  // namespace tessera
