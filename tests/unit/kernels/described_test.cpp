// Formats that are described in numbers. Those of the registry, so described, have the same codes, scales, values,
// shards and statistics, bit for bit. Elements of all widths are the nearest numbers.
#include <gtest/gtest.h>

#include <cmath>

#include "kernels/convert/convert.hpp"
#include "kernels/quantize/measure.hpp"
#include "tests/support/compare.hpp"
#include "tests/support/quantized.hpp"

namespace tessera {
namespace {

using formats::Described;
using formats::Description;
using formats::Matrix;

struct Pair {
  std::string_view name, description;
};
/// All formats of the registry but bf16.
constexpr Pair pairs[] = {
    {"fp8_block", "e4m3nan_128x128_power"},      {"fp8_block_1d", "e4m3nan_1x128_power"},
    {"mxfp8", "e4m3nan_1x32_e8m0"},              {"mxfp8_2d", "e4m3nan_32x32_e8m0"},
    {"nvfp4", "e2m1_16x16_e4m3"},                {"nvfp4_1d", "e2m1_1x16_e4m3"},
    {"fp8_tensor", "e4m3nan_tensor_power"},      {"fp8_tensor_e5m2", "e5m2ieee_tensor_power"},
    {"mxfp8_e5m2", "e5m2ieee_1x32_e8m0"},        {"mxfp6_e3m2", "e3m2_1x32_e8m0"},
    {"mxfp6_e3m2_2d", "e3m2_32x32_e8m0"},        {"mxfp6_e2m3", "e2m3_1x32_e8m0"},
    {"mxfp6_e2m3_2d", "e2m3_32x32_e8m0"},        {"mxfp4", "e2m1_1x32_e8m0"},
    {"mxfp4_2d", "e2m1_32x32_e8m0"},
};
constexpr std::size_t choosing = 2;  // nvfp4_46 and its 1D form: a description has one encoding for each block
constexpr std::size_t by_lines = 1;  // nvfp4_row: it has one scale for the whole matrix
static_assert(std::size(pairs) + choosing + by_lines + 1 == formats::Registry::size,
              "describe the new format here, or say why it cannot be");

/// All descriptions without flaws.
std::vector<Description> sound_descriptions() {
  std::vector<Description> all;
  Description d;
  for (d.exponent_bits = 0; d.exponent_bits <= 7; ++d.exponent_bits)
    for (d.mantissa_bits = 0; d.mantissa_bits <= 8; ++d.mantissa_bits)
      for (const auto special : {formats::Special::none, formats::Special::nan, formats::Special::ieee})
        for (const auto& block : {formats::Block{0, 0}, {1, 16}, {1, 64}, {1, 128}, {4, 4}, {8, 8}, {64, 64}, {16, 32}})
          for (int scale = 0; scale < 4; ++scale) {
            d.special = special;
            d.block = block;
            d.scale = static_cast<formats::ScaleKind>(scale);
            if (!formats::flaw_of(d)) all.push_back(d);
          }
  return all;
}

TEST(Described, AnIdHoldsItsDescriptionAndATextNamesIt) {
  std::set<FormatId> ids;
  for (const Description& d : sound_descriptions()) {
    const FormatId id = formats::id_of_description(d);
    EXPECT_TRUE(formats::is_described(id));
    EXPECT_TRUE(ids.insert(id).second) << formats::text_of(d);
    EXPECT_EQ(formats::description_of(id), d) << formats::text_of(d);
    EXPECT_EQ(find_format(formats::text_of(d)), id) << formats::text_of(d);
    EXPECT_EQ(traits_of(id).name, formats::text_of(d));
  }
  EXPECT_GT(ids.size(), 300u);
  for (const char* none :
       {"int4", "int9_1x32_e8m0", "int1_1x32_e8m0", "e6m1_1x32_e8m0", "e4m4_1x32_e8m0", "e4m3_1x24_e8m0",
        "e4m3_2x32_e8m0", "e4m3_1x256_e8m0", "e4m3_tensor_e8m0", "int4nan_1x32_e8m0", "e5m0ieee_1x32_e8m0",
        "int8_1x32_e4m3", "e2m4_16x16_e4m3", "e4m3_1x32", "e4m3_1x32_e8m0_", ""})
    EXPECT_FALSE(find_format(none)) << none;
}

/// The nearest number's code among all, ties to the even code, larger magnitudes to the largest.
std::uint32_t nearest(const formats::DescribedElement& element, float x) {
  if (std::isnan(x)) return element.nan_code;
  const double magnitude = std::min<double>(std::fabs(x), element.max);
  std::uint32_t best = 0;
  for (std::uint32_t code = 1; code <= element.max_code; ++code) {
    const double error = std::fabs(element.decode(code) - magnitude),
                 before = std::fabs(element.decode(best) - magnitude);
    if (error < before || (error == before && code % 2 == 0)) best = code;
  }
  return best | (std::signbit(x) ? element.sign : 0u);
}

TEST(Described, ElementsAreTheNearestNumbers) {
  std::set<std::string> seen;
  std::mt19937_64 bits(3);
  for (const Description& d : sound_descriptions()) {
    const formats::DescribedElement element(d);
    const std::string name = formats::text_of(d).substr(0, formats::text_of(d).find('_'));
    if (!seen.insert(name).second) continue;
    float before = -1;
    std::vector<float> values{0.0f, -0.0f, INFINITY, -INFINITY, NAN, 3e38f, 1e-40f};
    for (std::uint32_t code = 0; code <= element.max_code; ++code) {
      const float value = element.decode(code), middle = (value + before) / 2;
      EXPECT_GT(value, before) << name << " " << code;
      EXPECT_EQ(element.decode(code | element.sign), -value) << name;
      for (const float x : {value, middle, std::nextafter(middle, 0.0f), std::nextafter(middle, 1e30f)})
        values.insert(values.end(), {x, -x});
      before = value;
    }
    for (int i = 0; i < 500; ++i) {
      const auto x = std::bit_cast<float>(static_cast<std::uint32_t>(bits()));
      values.insert(values.end(), {x, std::ldexp(std::copysign(1.0f, x), static_cast<int>(bits() % 40) - 20) * 1.37f});
    }
    for (const float x : values) EXPECT_EQ(element.encode(x), nearest(element, x)) << name << " " << x;
    EXPECT_EQ(element.max, before);
  }
  EXPECT_GT(seen.size(), 40u);
  const formats::DescribedElement int4(Description{0, 3}), ternary(Description{0, 1});
  for (int i = -7; i <= 7; ++i) EXPECT_EQ(int4.decode(int4.encode(static_cast<float>(i))), static_cast<float>(i));
  EXPECT_EQ(int4.max, 7.0f);
  EXPECT_EQ(ternary.max, 1.0f);
}

// The OCP conversion: floor(log2 amax) less the exponent of the largest number.
TEST(Described, AFlooredScaleIsOcps) {
  for (const char* name : {"e4m3nan_1x32_e8m0_floor", "e2m1_1x32_e8m0_floor", "int8_1x32_e8m0_floor"}) {
    const Described format(*find_format(name));
    for (float amax = 1e-30f; amax < 1e30f; amax *= 1.7f) {
      const int exponent = std::ilogb(amax) - std::ilogb(format.element.max);
      EXPECT_EQ(format.encoding(amax, {}).scale, static_cast<std::uint32_t>(exponent + 127)) << name << " " << amax;
      EXPECT_EQ(format.encoding(amax, {}).multiplier, std::ldexp(1.0f, -exponent)) << name;
    }
  }
}

/// Both copies of matrices of one format, one behind the other.
class Copies {
 public:
  Copies(Device& device, FormatId id, Matrix m, std::int64_t members)
      : device_(device), id_(id), format_(traits_of(id)), matrix_(m), members_(members) {
    for (const Side side : {Side::rowwise, Side::columnwise}) {
      Copy& copy = side == Side::rowwise ? item.rowwise : item.columnwise;
      const auto all = [&](Shape one) { return Shape{members * one[0], one[1]}; };
      const bool own = side == Side::rowwise || format_.columnwise != formats::Columnwise::shared;
      copy.data = own ? test::poisoned(device, format_.data_type, all(format_.data_shape(side, m))) : item.rowwise.data;
      if (format_.scaled) copy.scales = test::poisoned(device, format_.scale_type, all(format_.scale_shape(side, m)));
      if (format_.tensor_amax) copy.amax = own ? test::poisoned(device, DType::f32, {members}) : item.rowwise.amax;
    }
    item.matrix = m;
    item.members = members;
  }

  QuantizeTable table(QuantizedMatrix one) {
    QuantizeTable made(id_, std::vector{std::move(one)});
    made.bind(device_.allocate(Category::staging, DType::u8, {made.bytes()}));
    device_.upload(device_.compute(), made);
    return made;
  }

  /// Codes in the order of the matrix, a byte each, as they are read: without the scales' padding and repetition.
  std::vector<std::uint8_t> codes(Side side) {
    const std::vector<std::uint8_t> bytes = test::on_host<std::uint8_t>(device_, data(side));
    std::vector<std::uint8_t> all;
    for (std::int64_t e = 0; e < members_; ++e)
      for (std::int64_t r = 0; r < matrix_.rows; ++r)
        for (std::int64_t c = 0; c < matrix_.columns; ++c) {
          const bool turned = format_.order_of(side) == formats::Order::transposed;
          const std::int64_t at = e * matrix_.elements() + (turned ? c * matrix_.rows + r : r * matrix_.columns + c);
          const std::uint8_t byte = bytes[static_cast<std::size_t>(at * format_.bits / 8)];
          all.push_back(format_.bits == 8 ? byte : static_cast<std::uint8_t>(byte >> (at % 2 * 4) & 15));
        }
    return all;
  }
  /// The scale of each block, its bytes as a number.
  std::vector<std::uint32_t> scales(Side side) {
    const Tensor& array = (side == Side::rowwise ? item.rowwise : item.columnwise).scales;
    const Matrix blocks = format_.blocks(side, matrix_), padded = format_.padded_extent(side, matrix_);
    const formats::ScaleLayout layout = format_.scale_layout(side);
    std::vector<std::byte> bytes(static_cast<std::size_t>(array.bytes()));
    device_.download(device_.compute(), bytes.data(), array);
    std::vector<std::uint32_t> all;
    for (std::int64_t e = 0; e < members_; ++e)
      for (std::int64_t i = 0; i < blocks.rows; ++i)
        for (std::int64_t j = 0; j < blocks.columns; ++j) {
          const std::int64_t row = i * layout.repeat.rows, column = j * layout.repeat.columns;
          const bool turned = layout.order == formats::Order::transposed;
          const std::int64_t at = e * padded.elements() +
                                  (turned ? column * padded.columns + row : row * padded.columns + column);
          std::uint32_t scale = 0;
          std::memcpy(&scale, bytes.data() + at * format_.scale_bytes, static_cast<std::size_t>(format_.scale_bytes));
          all.push_back(scale);
        }
    return all;
  }
  /// Values of the first member's factors, decoded.
  std::vector<bf16> factors(Side side) {
    QuantizedMatrix one = item;
    one.values = test::poisoned<bf16>(device_, {members_ * matrix_.rows, matrix_.columns});
    decode_one(device_.compute(), id_, one, side);
    return test::on_host<bf16>(device_, one.values);
  }
  std::vector<float> amaxes(Side side) {
    return test::on_host<float>(device_, (side == Side::rowwise ? item.rowwise : item.columnwise).amax);
  }

  QuantizedMatrix item;

 private:
  Tensor data(Side side) const { return side == Side::rowwise ? item.rowwise.data : item.columnwise.data; }

  Device& device_;
  FormatId id_;
  FormatTraits format_;
  Matrix matrix_;
  std::int64_t members_;
};

void expect_same(Copies& built, Copies& described, FormatId id, const std::string& where) {
  for (const Side side : {Side::rowwise, Side::columnwise}) {
    const std::string at = where + " " + name_of(side);
    EXPECT_TRUE(test::same_bits(built.codes(side), described.codes(side))) << at;
    if (traits_of(id).scaled) {
      EXPECT_TRUE(test::same_bits(built.scales(side), described.scales(side))) << at;
    }
    if (traits_of(id).tensor_amax) {
      EXPECT_TRUE(test::same_bits(built.amaxes(side), described.amaxes(side))) << at;
    }
    EXPECT_TRUE(test::same_bits(built.factors(side), described.factors(side))) << at;
  }
}

constexpr Matrix sizes[] = {{32, 96}, {160, 288}, {128, 128}};
FormatId built_id(const Pair& pair) { return find_format(pair.name).value(); }
FormatId described_id(const Pair& pair) { return find_format(pair.description).value(); }

TEST(Described, HasTheBitsOfTheRegistrysFormats) {
  Device device;
  for (const Pair& pair : pairs)
    for (const Matrix m : sizes)
      for (const bool odd : {false, true}) {
        const Tensor values = test::on_device(device, {2 * m.rows, m.columns}, test::wild(2 * m.elements(), 5, odd));
        Copies built(device, built_id(pair), m, 2), described(device, described_id(pair), m, 2);
        for (Copies* copies : {&built, &described}) {
          copies->item.values = values;
          quantize(device.compute(), copies->table(copies->item));
        }
        expect_same(built, described, built_id(pair), std::string(pair.name) + " " + Shape{m.rows, m.columns}.text());
      }
}

/// Masters cut into parts, each with amaxes of its own; the largest are those of all.
void cast_in_parts(Device& device, Copies& copies, FormatId id, const Tensor& masters,
                   const std::vector<std::int64_t>& cuts, const Tensor& block_scales) {
  std::vector<QuantizeTable> tables;
  for (std::size_t i = 0; i + 1 < cuts.size(); ++i) {
    QuantizedMatrix part = copies.item;
    part.begin = ElementIndex(cuts[i]);
    part.values = masters.flat(cuts[i], cuts[i + 1] - cuts[i]);
    part.block_scales = block_scales;
    if (block_scales) part.rowwise.scales = part.columnwise.scales = {};
    tables.push_back(copies.table(part));
  }
  std::vector<std::uint16_t> most;
  Tensor amaxes = test::poisoned(device, DType::bf16, {tables[0].amax_entries()});
  const Tensor words{amaxes.data, DType::u16, amaxes.shape};
  for (const QuantizeTable& table : tables) {
    block_amax(device.compute(), table, amaxes);
    const auto own = test::on_host<std::uint16_t>(device, words);
    most.resize(own.size());
    for (std::size_t i = 0; i < own.size(); ++i) most[i] = std::max(most[i], own[i]);
  }
  device.upload(device.compute(), words, most.data());
  for (const QuantizeTable& table : tables) partial_cast(device.compute(), table, amaxes);
  QuantizedMatrix whole = copies.item;
  whole.values = {nullptr, DType::f32, Shape{0}};
  whole.block_scales = block_scales;
  if (traits_of(id).columnwise != formats::Columnwise::requantized)
    build_columnwise(device.compute(), copies.table(whole));
}

TEST(Described, ShardsAtAnyCutMakeTheWhole) {
  Device device;
  std::mt19937_64 bits(11);
  for (const Pair& pair : pairs) {
    const FormatTraits built_traits = traits_of(built_id(pair)), traits = traits_of(described_id(pair));
    if (built_traits.agreement == formats::Agreement::nothing) continue;
    EXPECT_EQ(traits.agreement, built_traits.agreement) << pair.name;
    for (const bool tiles : {false, true}) {
      if (tiles && !traits.scaled) continue;
      const Matrix m{160, 288};
      const std::int64_t n = 2 * m.elements(), step = tiles ? traits.block.rows * m.columns : 32;
      const Tensor masters = test::on_device(device, {2 * m.rows, m.columns}, test::wild(n, 9, true));
      std::vector<std::int64_t> cuts{0, n};
      for (int i = 0; i < 4; ++i) {
        const auto at = static_cast<std::int64_t>(bits() % static_cast<std::uint64_t>(m.elements())) / step * step;
        cuts.push_back(at + (i % 2 == 0 ? 0 : m.elements()));
      }
      std::ranges::sort(cuts);
      Copies whole(device, built_id(pair), m, 2), parts(device, described_id(pair), m, 2);
      whole.item.values = masters;
      quantize(device.compute(), whole.table(whole.item));
      const Shape of_blocks{2 * traits.blocks(Side::rowwise, m).elements()};
      const Tensor scales = tiles ? test::poisoned(device, traits.scale_type, of_blocks) : Tensor{};
      cast_in_parts(device, parts, described_id(pair), masters, cuts, scales);
      expect_same(whole, parts, built_id(pair), std::string(pair.name) + (tiles ? " in rows of tiles" : " in parts"));
    }
  }
}

// What lies outside of a shard stays.
TEST(Described, AShardWritesWhatItOwns) {
  Device device;
  const Matrix m{64, 96};
  const FormatId id = find_format("int4_16x16_e4m3").value();
  Copies copies(device, id, m, 1);
  QuantizedMatrix part = copies.item;
  const std::vector<float> masters = test::uniform<float>(500, 3);
  part.begin = ElementIndex(1000);
  part.values = test::on_device(device, masters);
  const QuantizeTable table = copies.table(part);
  const Tensor amaxes = test::poisoned(device, DType::bf16, {table.amax_entries()});
  block_amax(device.compute(), table, amaxes);
  partial_cast(device.compute(), table, amaxes);
  const std::vector<std::uint8_t> codes = copies.codes(Side::rowwise);
  for (std::size_t i = 0; i < codes.size(); ++i) EXPECT_EQ(codes[i] == 0xFF, i < 1000 || i >= 1500) << i;
}

TEST(Described, FactorsOfProductsAreThoseOfCodes) {
  Device device;
  const Matrix m{96, 160};
  std::vector<bf16> values;
  for (const float x : test::wild(m.elements(), 21, false)) values.push_back(bf16(x));
  const Tensor x = test::on_device(device, {m.rows, m.columns}, values);
  for (const char* name : {"int4_1x64_e8m0", "e2m1_16x16_e4m3", "e3m2_1x16_e4m3", "int6_tensor_power", "e2m3_8x8_power",
                           "e4m3nan_1x32_e8m0"}) {
    const FormatId id = find_format(name).value();
    for (const bool both : {false, true})
      for (const Side side : {Side::rowwise, Side::columnwise}) {
        Copies copies(device, id, m, 1);
        copies.item.values = x;
        quantize_one(device.compute(), id, copies.item, Purpose{Purpose::Role::activation});
        QuantizedMatrix factors;
        factors.matrix = m;
        factors.values = x;
        const auto place = [&] {
          Copy copy;
          copy.data = test::poisoned<bf16>(device, {m.rows, m.columns});
          if (traits_of(id).tensor_amax) copy.amax = test::poisoned<float>(device, {1});
          return copy;
        };
        if (both || side == Side::rowwise) factors.rowwise = place();
        if (both || side == Side::columnwise) factors.columnwise = place();
        make_factors(device.compute(), id, factors, Purpose{Purpose::Role::activation});
        const Copy& made = side == Side::rowwise ? factors.rowwise : factors.columnwise;
        EXPECT_TRUE(test::same_bits(test::on_host<bf16>(device, made.data), copies.factors(side))) << name;
      }
  }
}

TEST(Described, IsMeasuredAsTheRegistrysFormats) {
  Device device;
  const Matrix m{160, 288};
  std::vector<bf16> values;
  for (const float x : test::wild(m.elements(), 31, true)) values.push_back(bf16(x));
  const Tensor x = test::on_device(device, {m.rows, m.columns}, values);
  const auto statistics = [&](FormatId id, Side side) {
    Copies copies(device, id, m, 1);
    copies.item.values = x;
    const Purpose purpose{Purpose::Role::activation};
    quantize_one(device.compute(), id, copies.item, purpose);
    const Tensor sums = device.allocate(Category::staging, DType::u64, {QuantizerSums::words});
    clear(device.compute(), sums);
    measure_copy(device.compute(), id, copies.item, purpose, side, {}, {}, sums);
    const Tensor masters = test::on_device(device, {m.rows * m.columns}, test::wild(m.elements(), 33, false));
    if (side == Side::rowwise) {
      const MasterPart part{m, 1, 0, masters};
      const Tensor tops = device.allocate(Category::staging, DType::bf16, {block_tops(id, side, m, 1)});
      const Tensor amaxes = test::poisoned<float>(device, {1});
      clear(device.compute(), tops);
      raise_tops(device.compute(), id, side, part, tops);
      amaxes_of_tops(device.compute(), tops, amaxes);
      measure_part(device.compute(), id, side, part, tops, amaxes, {}, sums);
    }
    return test::on_host<std::uint64_t>(device, sums);
  };
  for (const Pair& pair : pairs)
    for (const Side side : {Side::rowwise, Side::columnwise})
      EXPECT_TRUE(test::same_bits(statistics(built_id(pair), side), statistics(described_id(pair), side)))
          << pair.name << " " << name_of(side);
}

}  // namespace
}  // namespace tessera
