// Bits that must be equal on every machine, against committed digests. (Other tests compare with references that were
// compiled for the same CPU.)
#include <gtest/gtest.h>

#include <bit>
#include <cmath>

#include "kernels/convert/convert.hpp"
#include "kernels/moe/moe.hpp"
#include "kernels/random/random.hpp"
#include "tests/support/portable_bits.hpp"
#include "tests/support/quantized_case.hpp"

namespace tessera {
namespace {

using namespace test;

// Values over 40 binades, both signs, some zeros, subnormals, infinities and NaNs; without libm, which differs between
// CPUs.
std::vector<float> spread(std::int64_t n) {
  constexpr std::uint32_t specials[] = {0, 0x80000000u, 1, 0x807FFFFFu, 0x7F800000u, 0xFF800000u, 0x7FC00000u};
  std::vector<float> values(static_cast<std::size_t>(n));
  for (std::size_t i = 0; i < values.size(); ++i) {
    const std::uint64_t random = mix64(i + 1);
    const auto exponent = static_cast<std::uint32_t>(107 + (random >> 32) % 40);
    const auto bits = (static_cast<std::uint32_t>(random) & 0x807FFFFFu) | exponent << 23;
    values[i] = std::bit_cast<float>(random >> 40 & 127 ? bits : specials[(random >> 48) % std::size(specials)]);
  }
  return values;
}

// Which bits of a NaN a product keeps depends on the machine: all NaN are made equal.
std::vector<float> with_one_nan(std::vector<float> values) {
  for (float& v : values)
    if (std::isnan(v)) v = std::bit_cast<float>(0x7FC00000u);
  return values;
}

template <class F>
struct PortableFormat : ::testing::Test {
  Device device;
};
TYPED_TEST_SUITE(PortableFormat, test::EveryFormat);

TYPED_TEST(PortableFormat, QuantizesAndDecodes) {
  using F = TypeParam;
  Device& on = this->device;
  for (const Precision precision : {Precision::bf16_first, Precision::as_given}) {
    Case<F> c(on, {160, 288}, 1, DType::f32, 0, false);
    c.values = spread(c.matrix.elements());
    on.upload(on.compute(), c.item.values, c.values.data());
    const QuantizeTable table = placed(on, formats::id_of<F>, {c.item});
    quantize(on.compute(), table, precision);
    for (const Side side : {Side::rowwise, Side::columnwise}) {
      if (!c.has[static_cast<int>(side)]) continue;
      const GuardedCopy<F>& made = side == Side::rowwise ? c.rowwise : c.columnwise;
      const std::string name = std::string(F::name) + " " + name_of(side) +
                               (precision == Precision::bf16_first ? " of bf16" : " of fp32");
      if (side == Side::rowwise || F::columnwise != formats::Columnwise::shared)
        expect_portable("data " + name, made.data.bytes(on));
      if (F::scaled) expect_portable("scales " + name, made.scales.bytes(on));
      dequantize(on.compute(), table, side);
      expect_portable("values " + name, with_one_nan(on_host<float>(on, c.item.values)));
    }
  }
}

TEST(Portable, RandomNumbersAndInitialWeights) {
  Device device;
  const RandomKey key = random_key(1234, "init", "layers.0.attention.qkv.weight", 0);
  std::vector<std::uint64_t> numbers;
  for (std::uint64_t i = 0; i < 1000; ++i) numbers.push_back(random_bits(key, i * i));
  expect_portable("random numbers", numbers);
  const auto drawn = [&]<class T>(T) {
    const Tensor weights = poisoned<T>(device, {100003});
    fill_normal(device.compute(), weights, key, 17, 0.02);
    return on_host<T>(device, weights);
  };
  expect_portable("initial weights fp32", drawn(0.0f));
  expect_portable("initial weights fp64", drawn(0.0));
}

TEST(Portable, RoundingAndDigests) {
  Device device;
  const auto values = spread(100003);
  const Tensor wide = on_device(device, values), narrow = poisoned<bf16>(device, {100003}),
               sum = on_device(device, std::vector<std::uint64_t>{0});
  convert(device.compute(), narrow, wide);
  expect_portable("fp32 rounded to bf16", on_host<bf16>(device, narrow));
  digest(device.compute(), sum.as<std::uint64_t>(), wide, 5);
  expect_portable("digest of fp32", on_host<std::uint64_t>(device, sum));
}

// Scores, choices, weights and gradients of a router, given its logits.
TEST(Portable, Routing) {
  Device device;
  Arena arena = device.arena(Category::activations, std::int64_t{4} << 20);
  const ScoreRule softmax, sigmoid{Scores::sigmoid, DType::bf16, 2.5, 8, 3};
  for (const std::int64_t experts : {16, 64, 256})
    for (const ScoreRule& rule : {softmax, sigmoid}) {
      const RouterShape shape{3, 50, experts, 6, true, 1, rule};
      const auto real = [&](Shape s) { return poisoned<float>(device, s); };
      const auto i32 = [&](Shape s) { return poisoned(device, DType::i32, s); };
      const std::int64_t m = shape.tokens();
      const Tensor logits = on_device(device, Shape{m, experts}, uniform<float>(m * experts, 5, -4, 4));
      const Routing routing{real({m, experts}), real({m}),        i32({m, 6}),         real({m, 6}), i32({experts + 1}),
                            i32({m, 6}),        i32({shape.rows()}), i32({3, experts}), real({m}),    logits};
      Stream& stream = device.compute();
      route(stream, arena, shape, routing, logits, on_device(device, uniform<float>(experts, 6, -0.2, 0.2)));
      const Tensor d = real({m, experts});
      route_backward(stream, shape, d, on_device(device, Shape{m, 6}, uniform<float>(m * 6, 7)), routing, 35, 0.3);
      const std::string name = "routing to " + std::to_string(experts) + (rule.groups > 1 ? " in groups, " : ", ");
      expect_portable(name + "scores", on_host<float>(device, routing.scores));
      expect_portable(name + "sums", on_host<float>(device, routing.log_sum));
      expect_portable(name + "experts", on_host<std::int32_t>(device, routing.expert));
      expect_portable(name + "weights", on_host<float>(device, routing.weight));
      expect_portable(name + "load", on_host<std::int32_t>(device, routing.load));
      expect_portable(name + "gradients", on_host<float>(device, d));
    }
}

}  // namespace
}  // namespace tessera
