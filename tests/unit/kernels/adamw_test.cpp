#include "kernels/optim/adamw.hpp"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "kernels/reference/adamw.hpp"
#include "tests/support/compare.hpp"
#include "tests/support/on_device.hpp"

namespace tessera {
namespace {

/// One value on the device, in bytes.
template <class T>
class Cell {
 public:
  Cell(Device& device, const T& value)
      : device_(device), bytes_(device.allocate(Category::optimizer, DType::u8, {std::int64_t{sizeof(T)}})) {
    device.upload(device.compute(), bytes_, &value);
  }
  T* get() const { return static_cast<T*>(bytes_.data); }
  T value() const {
    T out;
    device_.download(device_.compute(), &out, bytes_);
    return out;
  }

 private:
  Device& device_;
  Tensor bytes_;
};

template <class M>
struct State {
  std::vector<float> master;
  std::vector<M> m, v;
};
template <class M>
State<M> start(std::int64_t n) {
  return {test::uniform<float>(n, 1), test::uniform<M>(n, 2, -0.1, 0.1), test::uniform<M>(n, 3, 0, 0.01)};
}

template <class M>
struct OnDevice {
  OnDevice(Device& d, const State<M>& s)
      : device(d), master(test::on_device(d, s.master)), m(test::on_device(d, s.m)), v(test::on_device(d, s.v)) {}
  ::testing::AssertionResult equals(const State<M>& s) const {
    if (auto same = test::same_bits(test::on_host<float>(device, master), s.master); !same) return same << " (master)";
    if (auto same = test::same_bits(test::on_host<M>(device, m), s.m); !same) return same << " (m)";
    return test::same_bits(test::on_host<M>(device, v), s.v);
  }
  Device& device;
  Tensor master, m, v;
};

template <class M>
class AdamWTest : public ::testing::Test {};
using Moments = ::testing::Types<float, bf16>;
TYPED_TEST_SUITE(AdamWTest, Moments);

TYPED_TEST(AdamWTest, EqualsItsReferenceToTheBitOverSteps) {
  Device device;
  Stream& stream = device.compute();
  for (std::int64_t n : {1, 31, 2048, 5003}) {
    for (float decay : {0.0f, 0.1f}) {
      const AdamWRule rule{0.9f, 0.95f, 1e-8f, decay};
      auto expected = start<TypeParam>(n);
      const OnDevice<TypeParam> state(device, expected);
      AdamWClock clock;
      const Cell<AdamWClock> device_clock(device, clock);
      for (std::uint64_t step = 0; step < 4; ++step) {
        const ClipResult clip{3.5f, step == 0 ? 1.0f : 0.3f / static_cast<float>(step), step == 2 ? 1 : 0};
        const float rate = 1e-3f * static_cast<float>(step + 1);
        auto gradient = test::uniform<float>(n, 10 + step, -2, 2);
        if (step == 2) gradient[0] = std::numeric_limits<float>::quiet_NaN();
        const Cell<ClipResult> device_clip(device, clip);
        const Cell<float> device_rate(device, rate);
        adamw_advance(stream, device_clock.get(), device_clip.get(), 0.9, 0.95);
        adamw_step(stream, rule, state.master, state.m, state.v, test::on_device(device, gradient), device_clock.get(),
                   device_clip.get(), device_rate.get());
        reference::adamw_advance(clock, clip, 0.9, 0.95);
        reference::adamw_step<TypeParam>(rule, expected.master, expected.m, expected.v, gradient, clock, clip, rate);
        EXPECT_TRUE(state.equals(expected)) << "n " << n << ", step " << step;
      }
      EXPECT_EQ(device_clock.value().t, 3) << "a skipped step is not applied";
      EXPECT_EQ(device_clock.value().beta1_power, 0.9 * 0.9 * 0.9);
      EXPECT_EQ(device_clock.value().beta2_power, 0.95 * 0.95 * 0.95);
    }
  }
}

TYPED_TEST(AdamWTest, ASkippedStepChangesNothing) {
  Device device;
  const auto before = start<TypeParam>(300);
  const OnDevice<TypeParam> state(device, before);
  const float nan = std::numeric_limits<float>::quiet_NaN();
  const Cell<ClipResult> clip(device, {nan, nan, 1});
  const Cell<AdamWClock> clock(device, {7, 0.5, 0.6});
  const Cell<float> rate(device, 1.0f);
  adamw_advance(device.compute(), clock.get(), clip.get(), 0.9, 0.95);
  adamw_step(device.compute(), {}, state.master, state.m, state.v,
             test::on_device(device, std::vector<float>(300, nan)), clock.get(), clip.get(), rate.get());
  EXPECT_TRUE(state.equals(before));
  EXPECT_EQ(clock.value().t, 7);
  EXPECT_EQ(clock.value().beta1_power, 0.5);
}

// The formula itself in double, so that kernel and reference cannot share a mistake: first step, where m/c1 = g and
// sqrt(v/c2) = |g|.
TEST(AdamW, FirstStepMovesByTheRateAgainstTheSign) {
  Device device;
  const std::vector<float> weights{1, -2, 0.5f, 3}, gradients{0.3f, -4, 1e-4f, 0};
  const Tensor master = test::on_device(device, weights);
  const Tensor m = test::on_device(device, std::vector<float>(4, 0)),
               v = test::on_device(device, std::vector<float>(4, 0));
  const Cell<AdamWClock> clock(device, {});
  const Cell<ClipResult> clip(device, {});
  const Cell<float> rate(device, 0.01f);
  adamw_advance(device.compute(), clock.get(), clip.get(), 0.9, 0.95);
  adamw_step(device.compute(), {0.9f, 0.95f, 1e-8f, 0.1f}, master, m, v, test::on_device(device, gradients),
             clock.get(), clip.get(), rate.get());
  std::vector<double> expected;
  for (std::size_t i = 0; i < 4; ++i) {
    const double g = gradients[i], w = weights[i];
    expected.push_back(w - 0.01 * (g / (std::abs(g) + 1e-8) + 0.1 * w));
  }
  EXPECT_TRUE(test::near(test::on_host<float>(device, master), expected, 1e-6));
}

TEST(AdamW, AnEmptyShardIsAnOrdinaryCase) {
  Device device;
  const Tensor none = device.allocate(Category::masters, DType::f32, {0});
  const Cell<AdamWClock> clock(device, {});
  const Cell<ClipResult> clip(device, {});
  const Cell<float> rate(device, 1.0f);
  EXPECT_NO_THROW(adamw_step(device.compute(), {}, none, none, none, none, clock.get(), clip.get(), rate.get()));
}

TEST(AdamW, RefusesOtherTypesAndSizes) {
  Device device;
  const Tensor four = test::poisoned<float>(device, {4}), five = test::poisoned<float>(device, {5});
  const Tensor half = test::poisoned<bf16>(device, {4});
  const auto step = [&](const Tensor& p, const Tensor& m, const Tensor& v, const Tensor& g) {
    adamw_step(device.compute(), {}, p, m, v, g, nullptr, nullptr, nullptr);
  };
  EXPECT_THROW(step(four, four, four, five), Error);
  EXPECT_THROW(step(four, five, four, four), Error);
  EXPECT_THROW(step(half, four, four, four), Error);
  EXPECT_THROW(step(four, half, four, four), Error);
  EXPECT_THROW(step(four, four, four, half), Error);
}

}  // namespace
}  // namespace tessera
