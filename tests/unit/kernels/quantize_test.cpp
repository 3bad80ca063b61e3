#include "kernels/quantize/quantize.hpp"

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <set>

#include "kernels/base/runtime.hpp"
#include "kernels/quantize/host_quantize.hpp"
#include "kernels/random/philox.hpp"
#include "kernels/reference/quantize.hpp"
#include "tests/support/compare.hpp"
#include "tests/support/quantized.hpp"

namespace tessera {
namespace {

using formats::Matrix;
using test::Guarded;
using test::GuardedCopy;

template <class L>
struct TypesOf;
template <class... F>
struct TypesOf<formats::FormatList<F...>> {
  using type = ::testing::Types<F...>;
};

// One matrix on the device, its copies poisoned, and what they must become.
template <class F>
struct Case {
  Matrix matrix;
  std::int64_t members;
  std::vector<float> values;
  GuardedCopy<F> rowwise, columnwise;
  bool has[2];
  QuantizedMatrix item;

  Case(Device& device, Matrix m, std::int64_t count, DType type, std::uint64_t seed, bool odd)
      : matrix(m),
        members(count),
        values(test::wild(m.elements() * count, seed, odd)),
        has{formats::takes<F>(Side::rowwise, m), formats::takes<F>(Side::columnwise, m)} {
    item.name = "case";
    item.matrix = m;
    item.members = count;
    if (type == DType::bf16) {
      std::vector<bf16> narrow;
      for (float v : values) narrow.push_back(bf16(v));
      item.values = test::on_device(device, {m.elements() * count}, narrow);
    } else {
      item.values = test::on_device(device, {m.elements() * count}, values);
    }
    if (has[0]) item.rowwise = (rowwise = GuardedCopy<F>(device, Side::rowwise, m, count)).copy();
    if (has[1]) item.columnwise = (columnwise = GuardedCopy<F>(device, Side::columnwise, m, count)).copy();
    if (F::columnwise == formats::Columnwise::shared) item.columnwise.data = item.rowwise.data;
  }

  std::vector<float> member(std::int64_t e) const {
    return {values.begin() + e * matrix.elements(), values.begin() + (e + 1) * matrix.elements()};
  }

  // `seen`: what a side quantizes of a member's values.
  template <class Seen>
  void compare(Device& device, Side side, const Seen& seen, const std::vector<reference::DrawByte>& draws = {}) const {
    const GuardedCopy<F>& made = side == Side::rowwise ? rowwise : columnwise;
    std::vector<std::uint8_t> data;
    std::vector<typename F::Scale> scales;
    std::vector<float> amaxes;
    for (std::int64_t e = 0; e < members; ++e) {
      const auto copy = reference::quantize<F>(
          side, matrix, seen(member(e)), draws.empty() ? reference::DrawByte() : draws[static_cast<std::size_t>(e)]);
      data.insert(data.end(), copy.data.begin(), copy.data.end());
      scales.insert(scales.end(), copy.scales.begin(), copy.scales.end());
      amaxes.push_back(copy.amax);
    }
    const std::string where =
        std::string(F::name) + " " + name_of(side) + " " + Shape{members, matrix.rows, matrix.columns}.text();
    if (side == Side::rowwise || F::columnwise != formats::Columnwise::shared) {
      EXPECT_TRUE(test::same_bits(made.data.bytes(device), data)) << where;
    }
    if (F::scaled) {
      EXPECT_TRUE(test::same_bits(test::on_host<typename F::Scale>(device, made.scales.inner), scales)) << where;
    }
    if (F::tensor_amax) {
      EXPECT_TRUE(test::same_bits(test::on_host<float>(device, made.amax.inner), amaxes)) << where;
    }
    EXPECT_TRUE(made.untouched(device)) << where;
  }
};

const std::vector<Matrix>& shapes() {
  static const std::vector<Matrix> all = [] {
    std::vector<Matrix> list;
    for (std::int64_t columns : {32, 48, 64, 96, 288, 2880})
      for (std::int64_t rows : {1, 16, 33, 127, 129, 160}) list.push_back({rows, columns});
    list.push_back({5, 7});
    list.push_back({0, 64});
    list.push_back({64, 0});
    return list;
  }();
  return all;
}

template <class F>
std::vector<Case<F>> cases(Device& device, DType type, std::int64_t widest) {
  std::vector<Case<F>> list;
  for (const Matrix& m : shapes()) {
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
TYPED_TEST_SUITE(Quantize, TypesOf<formats::Registry>::type);

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
    auto bytes = c.rowwise.data.bytes(this->device);
    const auto more = c.columnwise.data.bytes(this->device);
    bytes.insert(bytes.end(), more.begin(), more.end());
    if (run == 0) first = bytes;
    ASSERT_TRUE(bytes == first) << run;
  }
}

// ---- a further format: this header's worth, and a line of the registry, are all that it would cost

/// OCP's MXINT8: a signed byte of which 64 is 1, an E8M0 scale per 32.
struct MxInt8 : formats::Mxfp8 {
  struct Element {
    using Storage = std::uint8_t;
    static constexpr int bits = 8;
    TESSERA_FN static constexpr std::uint32_t encode(float x) {
      const float units = x * 64.0f;
      const float bounded = units > 127.0f ? 127.0f : units < -127.0f ? -127.0f : units;
      return static_cast<std::uint8_t>(static_cast<std::int32_t>(bounded + (bounded < 0 ? -0.5f : 0.5f)));
    }
    TESSERA_FN static constexpr float decode(std::uint32_t code) {
      return static_cast<float>(static_cast<std::int8_t>(code)) / 64.0f;
    }
  };
  static constexpr std::string_view name = "mxint8";
  TESSERA_FN static constexpr formats::Encoding<Scale> encoding(float amax, formats::TensorScale) {
    const std::uint32_t code = formats::E8M0::encode(amax * 0.5f);
    return {static_cast<Scale>(code), formats::E8M0::multiplier(code)};
  }
};
static_assert(formats::Format<MxInt8>);

// The registry with that line in it. Its kernels are compiled with the library, so that here the host's are called.
template <class F, class... All>
formats::FormatList<All..., F> with_line(formats::FormatList<All...>);
using Extended = decltype(with_line<MxInt8>(formats::Registry{}));

TEST(FurtherFormat, IsDispatchedAndQuantizedByTheSameCode) {
  Device device;
  if (Runtime::back_end() == "Cuda") GTEST_SKIP() << "walks device memory on the host";
  const Matrix m{160, 96};
  const auto x = test::uniform<float>(m.elements(), 4);
  const Tensor values = test::on_device(device, x);
  std::set<std::string_view> names;
  for (int place = 0; place < Extended::size; ++place)
    formats::visit(Extended{}, place, [&]<class F>() {
      EXPECT_EQ(static_cast<int>(formats::position<F>(Extended{})), place);
      EXPECT_TRUE(names.insert(F::name).second);
      if (!formats::takes<F>(Side::rowwise, m) || !formats::takes<F>(Side::columnwise, m) || F::tensor_amax) return;
      GuardedCopy<F> copies[2] = {{device, Side::rowwise, m, 1}, {device, Side::columnwise, m, 1}};
      quantizer::Descriptor d{};
      d.matrix = m;
      d.members = 1;
      d.stride = d.end = m.elements();
      d.values = static_cast<std::byte*>(values.data);
      d.patches = {2, 1};
      for (int s = 0; s < 2; ++s)
        d.side[s] = {static_cast<std::byte*>(copies[s].data.inner.data), copies[s].scales.inner.data, nullptr, nullptr};
      using M = quantizer::Mode<quantizer::FromMaster, Purpose::weight>;
      for (std::int32_t row = 0; row < 2; ++row)
        quantizer::host::quantize_patch<F, M>(d, quantizer::patch_of(d, {0, 0, row, 0}));
      for (Side side : {Side::rowwise, Side::columnwise}) {
        const GuardedCopy<F>& made = copies[static_cast<int>(side)];
        const auto whole = reference::quantize<F>(side, m, reference::rounded_to_bf16(x));
        if (side == Side::rowwise || F::columnwise != formats::Columnwise::shared) {
          EXPECT_TRUE(test::same_bits(made.data.bytes(device), whole.data)) << F::name;
        }
        if (F::scaled) {
          EXPECT_TRUE(test::same_bits(test::on_host<typename F::Scale>(device, made.scales.inner), whole.scales))
              << F::name;
        }
        EXPECT_TRUE(made.untouched(device)) << F::name;
      }
    });
  EXPECT_TRUE(names.contains("mxint8"));
  EXPECT_EQ(names.size(), static_cast<std::size_t>(formats::Registry::size + 1));
}

// ---- what must not pass, and what must not matter

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

// Every fp32 is somewhere between two codes: random bit patterns, quantized as they are.
TYPED_TEST(Quantize, RoundsRandomFp32AsTheReferenceDoes) {
  using F = TypeParam;
  Case<F> c(this->device, {512, 512}, 1, DType::f32, 2, false);
  std::mt19937 bits(8);
  for (std::size_t i = 0; i < c.values.size(); ++i) {
    // Blocks of like exponents, so that few values vanish beside the largest; every 61st is anything.
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

// ---- activations and gradients

struct Rotated : ::testing::TestWithParam<Purpose> {
  Device device;
};

TEST_P(Rotated, EqualsTheReference) {
  using F = formats::Nvfp4OneD;
  const std::int64_t width = 96;
  Case<F> c(device, {160, width}, 2, DType::f32, 21, true);
  std::vector<std::int64_t> rows;
  for (std::int64_t r = 0; r < 2 * 160; ++r) rows.push_back((std::int64_t{1} << 33) + 7 * r);
  c.item.draws = {random_key(5, "sr", "3:dy:row", 9), random_key(5, "sr", "3:dy:col", 9), 0,
                  test::on_device(device, rows)};
  const QuantizeTable table = test::placed(device, formats::id_of<F>, {c.item});
  quantize(device.compute(), table, Precision::bf16_first, GetParam());

  const auto draw = [&](RandomKey key, std::int64_t e) -> reference::DrawByte {
    return [&rows, key, e, width](std::int64_t r, std::int64_t column) {
      const auto index = static_cast<std::uint64_t>(rows[static_cast<std::size_t>(e * 160 + r)] * width + column);
      const std::uint64_t b = index / 16;
      const PhiloxBlock block =
          philox({{static_cast<std::uint32_t>(b), static_cast<std::uint32_t>(b >> 32),
                   static_cast<std::uint32_t>(key.stream), static_cast<std::uint32_t>(key.stream >> 32)}},
                 key.seed);
      std::uint8_t bytes[16];
      std::memcpy(bytes, block.word, sizeof bytes);
      return std::uint32_t{bytes[index % 16]};
    };
  };
  std::vector<reference::DrawByte> draws[2];
  if (GetParam() == Purpose::gradient)
    for (int s = 0; s < 2; ++s)
      for (std::int64_t e = 0; e < 2; ++e)
        draws[s].push_back(draw(s == 0 ? c.item.draws.rowwise : c.item.draws.columnwise, e));
  c.compare(device, Side::rowwise, reference::rounded_to_bf16, draws[0]);
  c.compare(
      device, Side::columnwise,
      [&](const auto& x) { return reference::hadamard(c.matrix, reference::rounded_to_bf16(x)); }, draws[1]);
}
INSTANTIATE_TEST_SUITE_P(Purposes, Rotated, ::testing::Values(Purpose::activation, Purpose::gradient));

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

// ---- tables

TEST(Table, OneLaunchWhateverTheNumberOfTensors) {
  Device device(Device::Kind::measuring);
  for (int count : {1, 1000}) {
    std::vector<QuantizedMatrix> matrices;
    for (int i = 0; i < count; ++i) {
      QuantizedMatrix m;
      m.matrix = {i % 3 == 0 ? 0 : 32, 64};
      m.values = device.allocate(Category::weights, DType::bf16, {m.matrix.rows, 64});
      m.rowwise = {device.allocate(Category::weights, DType::u8, {m.matrix.elements()}),
                   device.allocate(Category::weights, DType::u8, {m.matrix.rows == 0 ? 0 : 128 * 4}),
                   {},
                   {}};
      matrices.push_back(m);
    }
    const std::int64_t before = device.compute().launches();
    quantize(device.compute(), test::placed(device, formats::id_of<formats::Mxfp8>, matrices));
    EXPECT_EQ(device.compute().launches() - before, 1);
  }
}

TEST(Table, EmptyMembersAndMatricesAnywhere) {
  Device device;
  using F = formats::Nvfp4;
  std::vector<QuantizedMatrix> matrices;
  std::vector<Case<F>> filled;
  const auto empty = [&](std::int64_t members, std::int64_t rows) {
    Case<F> c(device, {rows, 64}, members, DType::f32, 1, false);
    matrices.push_back(c.item);
  };
  for (std::uint64_t i = 0; i < 3; ++i) {
    empty(0, 32);
    empty(2, 0);
    filled.emplace_back(device, Matrix{32, 64}, 2, DType::f32, i, false);
    matrices.push_back(filled.back().item);
    empty(3, 0);
  }
  quantize(device.compute(), test::placed(device, formats::id_of<F>, matrices));
  for (const auto& c : filled)
    for (Side side : {Side::rowwise, Side::columnwise}) c.compare(device, side, reference::rounded_to_bf16);
  const QuantizeTable none(formats::id_of<F>, std::vector<QuantizedMatrix>{});
  EXPECT_EQ(none.amax_entries(), 0);
}

void expect_refusal(FormatId format, const std::vector<QuantizedMatrix>& matrices,
                    const std::vector<std::string>& words) {
  try {
    QuantizeTable table(format, matrices);
    ADD_FAILURE() << "accepted" << (words.empty() ? "" : ": " + words.front());
  } catch (const Error& error) {
    for (const std::string& word : words)
      EXPECT_NE(std::string(error.what()).find(word), std::string::npos) << error.what();
  }
}

TEST(Table, RefusesWithTensorShapeAndRule) {
  Device device;
  using F = formats::Mxfp8;
  const FormatId id = formats::id_of<F>;
  Case<F> good(device, {64, 96}, 2, DType::f32, 1, false);
  const auto with = [&](const auto& change) {
    QuantizedMatrix m = good.item;
    m.name = "layers.3.mlp.up.weight";
    change(m);
    return std::vector<QuantizedMatrix>{m};
  };
  expect_refusal(id, with([](auto& m) {
                   m.matrix = {64, 90};
                   m.values.shape = Shape{2 * 64 * 90};
                 }),
                 {"layers.3.mlp.up.weight", "[2,64,90]", "mxfp8", "divisible"});
  expect_refusal(id, with([](auto& m) { m.rowwise.data.data = nullptr; }), {"data", "no buffer"});
  expect_refusal(id, with([](auto& m) { m.rowwise.scales.shape = Shape{5}; }), {"scales", "5 bytes instead of"});
  expect_refusal(id, with([](auto& m) { m.columnwise.data = m.rowwise.data; }), {"overlap"});
  expect_refusal(id, with([](auto& m) { m.member_stride = 10; }), {"members overlap"});
  expect_refusal(id, with([](auto& m) { m.begin = ElementIndex(1); }), {"outside"});
  expect_refusal(id, with([](auto& m) { m.matrix = {std::int64_t{1} << 40, std::int64_t{1} << 40}; }), {"index"});
  expect_refusal(id, with([](auto& m) { m.matrix.rows = -1; }), {"negative"});
  expect_refusal(id, with([&](auto& m) { m.block_scales = device.allocate(Category::weights, DType::u8, {8}); }),
                 {"square"});
  expect_refusal(id, with([](auto& m) { m.values.type = DType::f64; }), {"bf16 or f32"});
  QuantizedMatrix other = good.item;
  other.values.type = DType::bf16;
  expect_refusal(id, {good.item, other}, {"one type"});
  QuantizedMatrix rows = good.item;
  rows.begin = ElementIndex(96);
  rows.values = good.item.values.flat(96, 64);
  EXPECT_THROW(quantize(device.compute(), test::placed(device, id, {rows})), Error);
  EXPECT_THROW(quantize(device.compute(), QuantizeTable(id, with([](auto&) {}))), Error);  // not placed
}

TYPED_TEST(Quantize, RefusesBadBuffersInEveryFormat) {
  using F = TypeParam;
  Case<F> good(this->device, {128, 128}, 2, DType::f32, 1, false);
  const FormatId id = formats::id_of<F>;
  const auto with = [&](const auto& change) {
    QuantizedMatrix m = good.item;
    change(m);
    return std::vector<QuantizedMatrix>{m};
  };
  const auto with_data = [&](void* data) {
    return with([&](auto& m) {
      m.rowwise.data.data = data;
      if (F::columnwise == formats::Columnwise::shared) m.columnwise.data.data = data;
    });
  };
  expect_refusal(id, with_data(nullptr), {"data", "no buffer"});
  expect_refusal(id, with_data(good.item.values.data), {"overlap"});
  expect_refusal(id, with([](auto& m) { m.matrix = {std::int64_t{1} << 40, std::int64_t{1} << 40}; }), {"index"});
  expect_refusal(id, with([](auto& m) { m.members = std::int64_t{1} << 62; }), {"index"});
  expect_refusal(id, with([](auto& m) { m.begin = ElementIndex(1); }), {"outside"});
  expect_refusal(id, with([](auto& m) { m.rowwise.data.shape = Shape{3}; }), {"data", "bytes instead of"});
  if (F::scaled) {
    expect_refusal(id, with([](auto& m) { m.rowwise.scales.data = nullptr; }), {"scales", "no buffer"});
    expect_refusal(id, with([](auto& m) { m.columnwise.scales = m.rowwise.scales; }), {});
  }
  if (!F::ragged)
    expect_refusal(id, with([](auto& m) {
                     m.matrix = {7, 40};
                     m.values.shape = Shape{2 * 7 * 40};
                   }),
                   {"divisible"});
}

}  // namespace
}  // namespace tessera
