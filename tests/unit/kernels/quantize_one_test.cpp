// quantize_one and decode_one, whose description is passed with the launch: the same bits as by a table.
#include <gtest/gtest.h>

#include "tests/support/quantized_case.hpp"
#include "tests/support/shown.hpp"

namespace tessera {
namespace {

using formats::Matrix;
using test::Case;

constexpr Matrix sizes[] = {{32, 48}, {160, 96}, {128, 128}, {544, 1056}, {48, 2880}};

template <class F>
struct QuantizeOne : ::testing::Test {
  Device device;
};
TYPED_TEST_SUITE(QuantizeOne, test::EveryFormat);

template <class F>
bool takes(Matrix m) {
  return formats::takes<F>(Side::rowwise, m) && formats::takes<F>(Side::columnwise, m);
}

template <class F>
std::vector<std::uint8_t> bytes_of(Device& device, const Case<F>& c) {
  std::vector<std::uint8_t> all;
  for (const test::GuardedCopy<F>* copy : {&c.rowwise, &c.columnwise})
    for (const test::Guarded* part : {&copy->data, &copy->scales, &copy->amax})
      if (part->inner.elements() > 0) {
        const auto bytes = part->bytes(device);
        all.insert(all.end(), bytes.begin(), bytes.end());
      }
  return all;
}

TYPED_TEST(QuantizeOne, GivesTheBitsOfATable) {
  using F = TypeParam;
  const Tensor step = test::on_device(this->device, std::vector<std::uint64_t>{5});
  for (const Matrix m : sizes)
    for (const Purpose purpose : {Purpose::weight, Purpose::activation, Purpose::gradient}) {
      if (!takes<F>(m)) continue;
      const std::int64_t members = purpose == Purpose::weight ? 3 : 1;
      Case<F> one(this->device, m, members, DType::bf16, 3, true),
          listed(this->device, m, members, DType::bf16, 3, true);
      for (Case<F>* c : {&one, &listed}) c->item.draws = {11, 12, 13, step, 77, {}};
      quantize_one(this->device.compute(), formats::id_of<F>, one.item, purpose);
      const QuantizeTable table = test::placed(this->device, formats::id_of<F>, {listed.item});
      quantize(this->device.compute(), table, Precision::bf16_first, purpose);
      EXPECT_TRUE(test::same_bits(bytes_of(this->device, one), bytes_of(this->device, listed))) << F::name;
      EXPECT_TRUE(one.rowwise.untouched(this->device) && one.columnwise.untouched(this->device)) << F::name;
    }
}

TYPED_TEST(QuantizeOne, IsDecodedAsATableIs) {
  using F = TypeParam;
  for (const Matrix m : sizes) {
    SCOPED_TRACE(test::shown(m.rows, m.columns));
    if (!takes<F>(m)) continue;
    Case<F> c(this->device, m, 2, DType::bf16, 4, false);
    quantize_one(this->device.compute(), formats::id_of<F>, c.item, Purpose::weight);
    for (const Side side : {Side::rowwise, Side::columnwise}) {
      const auto decoded = [&](const auto& decode) {
        c.item.values = test::poisoned<bf16>(this->device, {2 * m.elements()});
        decode();
        return test::on_host<bf16>(this->device, c.item.values);
      };
      const auto one = decoded([&] { decode_one(this->device.compute(), formats::id_of<F>, c.item, side); });
      const auto listed = decoded([&] {
        decode_factors(this->device.compute(), test::placed(this->device, formats::id_of<F>, {c.item}), side);
      });
      EXPECT_TRUE(test::same_bits(one, listed)) << F::name << " " << name_of(side);
    }
  }
}

/// Memory for the bf16 factors of one copy, which begin at element `first`, with guards around them.
struct Factors {
  Tensor memory, amax;
  std::int64_t first, count;

  Factors(Device& device, Matrix m, std::int64_t begin, std::int64_t amaxes)
      : memory(test::poisoned<bf16>(device, {m.elements() + 16})),
        amax(test::poisoned<float>(device, {amaxes})),
        first(begin),
        count(m.elements()) {}
  Copy copy(bool scaled) const {
    Copy copy;
    copy.data = memory.flat(first, count);
    if (scaled) copy.amax = amax;
    return copy;
  }
};

/// Checks that make_factors() gives the bits of quantize_one() and decode_one() for `sides`, and writes nothing else.
template <class F>
void expect_factors(Device& device, Case<F>& c, Purpose purpose, const std::vector<Side>& sides, std::int64_t first) {
  QuantizedMatrix item = c.item, decoded = c.item;
  item.rowwise = item.columnwise = {};
  std::vector<Factors> made;
  for (const Side side : sides)
    (side == Side::rowwise ? item.rowwise : item.columnwise) =
        made.emplace_back(device, c.matrix, first, traits_of<F>().amaxes(side, c.matrix)).copy(F::tensor_amax);
  make_factors(device.compute(), formats::id_of<F>, item, purpose);
  for (std::size_t i = 0; i < sides.size(); ++i) {
    auto wanted = test::on_host<bf16>(device, test::poisoned<bf16>(device, made[i].memory.shape));
    decoded.values = test::poisoned<bf16>(device, {c.matrix.elements()});
    decode_one(device.compute(), formats::id_of<F>, decoded, sides[i]);
    const auto inside = test::on_host<bf16>(device, decoded.values);
    std::copy(inside.begin(), inside.end(), wanted.begin() + first);
    const std::string where =
        std::string(F::name) + " " + name_of(sides[i]) + " " + Shape{c.matrix.rows, c.matrix.columns}.text();
    EXPECT_TRUE(test::same_bits(test::on_host<bf16>(device, made[i].memory), wanted)) << where;
    if (!F::tensor_amax) continue;
    const Tensor& amax = (sides[i] == Side::rowwise ? c.item.rowwise : c.item.columnwise).amax;
    EXPECT_TRUE(test::same_bits(test::on_host<float>(device, made[i].amax), test::on_host<float>(device, amax)))
        << where;
  }
}

TYPED_TEST(QuantizeOne, MakesTheFactorsThatDecodingGives) {
  using F = TypeParam;
  const Tensor step = test::on_device(this->device, std::vector<std::uint64_t>{5});
  for (const Matrix m : {Matrix{32, 48}, Matrix{160, 96}, Matrix{128, 128}, Matrix{288, 160}, Matrix{48, 288},
                         Matrix{33, 64}, Matrix{160, 40}})
    for (const Purpose purpose : {Purpose::weight, Purpose::activation, Purpose::gradient})
      for (const bool odd : {false, true}) {
        SCOPED_TRACE(test::shown(purpose, odd));
        Case<F> c(this->device, m, 1, DType::bf16, 3, odd);
        std::vector<std::int64_t> numbers(static_cast<std::size_t>(m.rows));
        for (std::size_t r = 0; r < numbers.size(); ++r) numbers[r] = static_cast<std::int64_t>(r * 7 % 5 + r);
        c.item.draws = {11, 12, 13, step, 77, odd ? test::on_device(this->device, numbers) : Tensor{}};
        if constexpr (F::scaled ? F::block.rows == F::block.columns : !F::tensor_amax) {
          EXPECT_THROW(make_factors(this->device.compute(), formats::id_of<F>, c.item, purpose), Error);
        } else {
          quantize_one(this->device.compute(), formats::id_of<F>, c.item, purpose);
          for (const std::int64_t first : {8, 7}) {  // at a multiple of 16 bytes, and beside one
            if (c.has[0]) expect_factors(this->device, c, purpose, {Side::rowwise}, first);
            if (c.has[1]) expect_factors(this->device, c, purpose, {Side::columnwise}, first);
            if (c.has[0] && c.has[1])
              expect_factors(this->device, c, purpose, {Side::rowwise, Side::columnwise}, first);
          }
        }
      }
}

/// A matrix whose rows in use end early, with NaN behind them, and one that has no others.
template <class F>
struct Shortened {
  Case<F> whole, part;
  std::int64_t end;

  Shortened(Device& device, Matrix m, std::int64_t rows)
      : whole(device, m, 1, DType::bf16, 8, true),
        part(device, {rows, m.columns}, 1, DType::bf16, 9, true),
        end(rows) {
    const auto used = static_cast<std::size_t>(rows * m.columns);
    std::copy_n(whole.values.begin(), used, part.values.begin());
    std::fill(whole.values.begin() + static_cast<std::ptrdiff_t>(used), whole.values.end(), std::nanf(""));
    for (Case<F>* c : {&whole, &part}) {
      const std::vector<bf16> narrow(c->values.begin(), c->values.end());
      device.upload(device.compute(), c->item.values, narrow.data());
      c->item.not_finite = test::on_device(device, std::vector<std::uint64_t>{0});
    }
    whole.item.rows_end = test::on_device(device, std::vector<std::int32_t>{static_cast<std::int32_t>(rows)});
  }
  /// Whether the data behind the end are as they were made.
  bool left(Device& device, Side side) const {
    const auto bytes = (side == Side::rowwise ? whole.rowwise : whole.columnwise).data.bytes(device);
    const Matrix m = whole.matrix;
    const bool turned = side == Side::columnwise && F::columnwise_order == formats::Order::transposed;
    const std::int64_t lines = turned ? m.columns : 1, length = turned ? m.rows : m.elements();
    const std::int64_t used = turned ? end : end * m.columns;
    for (std::int64_t line = 0; line < lines; ++line) {
      const auto at = [&](std::int64_t i) { return bytes.begin() + formats::data_bytes<F>(line * length + i); };
      if (!std::all_of(at(used), at(length), [](std::uint8_t byte) { return byte == 0xFF; })) return false;
    }
    return true;
  }
};

/// What one copy stands for, and its amaxes: [end, columns] of it.
template <class F>
std::pair<std::vector<bf16>, std::vector<float>> decoded_of(Device& device, const Case<F>& c, Side side,
                                                            std::int64_t end) {
  QuantizedMatrix item = c.item;
  item.values = test::poisoned<bf16>(device, {c.matrix.elements()});
  decode_one(device.compute(), formats::id_of<F>, item, side);
  std::vector<bf16> values = test::on_host<bf16>(device, item.values);
  for (std::size_t i = static_cast<std::size_t>(end * c.matrix.columns); i < values.size(); ++i)
    EXPECT_EQ(values[i].bits, 0xFFFF) << "decoded behind the end";
  values.resize(static_cast<std::size_t>(end * c.matrix.columns));
  if (!F::tensor_amax) return {values, {}};
  auto amaxes = test::on_host<float>(device, (side == Side::rowwise ? item.rowwise : item.columnwise).amax);
  if (formats::by_lines<F> && side == Side::rowwise) amaxes.resize(static_cast<std::size_t>(end));
  return {values, amaxes};
}

TYPED_TEST(QuantizeOne, RowsFromTheEndOnAreNeitherReadNorWritten) {
  using F = TypeParam;
  const Tensor step = test::on_device(this->device, std::vector<std::uint64_t>{5});
  for (const Matrix m : {Matrix{512, 288}, Matrix{544, 1056}})
    for (const std::int64_t end : {0, 32, 128, 160, 384, 512})
      for (const Purpose purpose : {Purpose::activation, Purpose::gradient}) {
        SCOPED_TRACE(test::shown(m.rows, m.columns, end, purpose));
        if (!takes<F>(m) || !takes<F>({end, m.columns})) continue;
        Shortened<F> c(this->device, m, end);
        for (Case<F>* one : {&c.whole, &c.part}) {
          one->item.draws = {11, 12, 13, step, 77, {}};
          quantize_one(this->device.compute(), formats::id_of<F>, one->item, purpose);
        }
        EXPECT_TRUE(c.whole.rowwise.untouched(this->device) && c.whole.columnwise.untouched(this->device));
        if constexpr (F::scaled ? F::block.rows != F::block.columns : F::tensor_amax)
          for (const Side side : {Side::rowwise, Side::columnwise})
            expect_factors(this->device, c.whole, purpose, {side}, 8);
        EXPECT_EQ(test::on_host<std::uint64_t>(this->device, c.whole.item.not_finite),
                  test::on_host<std::uint64_t>(this->device, c.part.item.not_finite));
        for (const Side side : {Side::rowwise, Side::columnwise}) {
          if (side == Side::columnwise && F::columnwise == formats::Columnwise::shared) continue;
          EXPECT_TRUE(c.left(this->device, side)) << F::name << " " << name_of(side);
          const auto found = decoded_of(this->device, c.whole, side, end);
          const auto wanted = decoded_of(this->device, c.part, side, end);
          if (end == 0) continue;
          EXPECT_TRUE(test::same_bits(found.first, wanted.first)) << F::name << " " << name_of(side);
          if (!F::tensor_amax) continue;
          EXPECT_TRUE(test::same_bits(found.second, wanted.second)) << F::name << " " << name_of(side) << " amax";
        }
      }
}

// The flag not_finite is set by a value at any place of any patch, and by nothing else.
TYPED_TEST(QuantizeOne, SaysWhereAValueIsNotFinite) {
  using F = TypeParam;
  if (formats::is_plain<F>) return;
  const std::uint16_t bad[] = {0x7F80, 0xFF80, 0x7FC1, 0xFF81}, good[] = {0x7F7F, 0xFF7F, 0x0001, 0x8000};
  for (const Matrix m : {Matrix{128, 128}, Matrix{160, 288}, Matrix{32, 96}}) {
    SCOPED_TRACE(test::shown(m.rows, m.columns));
    Case<F> c(this->device, m, 1, DType::bf16, 6, false);
    std::vector<std::uint16_t> bits(static_cast<std::size_t>(m.elements()), 0x3F80);
    const Tensor raw{c.item.values.data, DType::u16, {m.elements()}};
    const auto found = [&](std::int64_t place, std::uint16_t value) {
      const std::uint16_t before = std::exchange(bits[static_cast<std::size_t>(place)], value);
      this->device.upload(this->device.compute(), raw, bits.data());
      bits[static_cast<std::size_t>(place)] = before;
      c.item.not_finite = test::on_device(this->device, std::vector<std::uint64_t>{0});
      quantize_one(this->device.compute(), formats::id_of<F>, c.item, Purpose::activation);
      return test::on_host<std::uint64_t>(this->device, c.item.not_finite).front();
    };
    for (const std::int64_t place : {std::int64_t{0}, m.columns - 1, m.elements() / 2 + 3, m.elements() - 1})
      for (std::size_t i = 0; i < std::size(bad); ++i) {
        EXPECT_EQ(found(place, bad[i]), 1u) << F::name << " " << place;
        EXPECT_EQ(found(place, good[i]), 0u) << F::name << " " << place;
      }
  }
}

}  // namespace
}  // namespace tessera
