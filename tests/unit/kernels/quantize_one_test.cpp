// quantize_one and decode_one, whose description is passed with the launch: the same bits as by a table.
#include <gtest/gtest.h>

#include "tests/support/quantized_case.hpp"

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

// The flag not_finite is set by a value at any place of any patch, and by nothing else.
TYPED_TEST(QuantizeOne, SaysWhereAValueIsNotFinite) {
  using F = TypeParam;
  if (!F::scaled) return;
  const std::uint16_t bad[] = {0x7F80, 0xFF80, 0x7FC1, 0xFF81}, good[] = {0x7F7F, 0xFF7F, 0x0001, 0x8000};
  for (const Matrix m : {Matrix{128, 128}, Matrix{160, 288}, Matrix{32, 96}}) {
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
