#include "kernels/optim/adamw.hpp"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "tests/reference/adamw.hpp"
#include "tests/support/compare.hpp"
#include "tests/support/on_device.hpp"

namespace tessera {
namespace {

constexpr float nan = std::numeric_limits<float>::quiet_NaN();

/// One value on the device, as bytes.
template <class T>
class Cell {
 public:
  Cell(Device& device, const T& value)
      : device_(device), bytes_(device.allocate(Category::optimizer, DType::u8, {std::int64_t{sizeof(T)}})) {
    set(value);
  }
  T* get() const { return static_cast<T*>(bytes_.data); }
  void set(const T& value) { device_.upload(device_.compute(), bytes_, &value); }
  T value() const {
    T out;
    device_.download(device_.compute(), &out, bytes_);
    return out;
  }

 private:
  Device& device_;
  Tensor bytes_;
};

/// Runs in the form of the reference.
template <class M>
struct HostRun {
  std::vector<float> master;
  std::vector<M> m, v;
  float weight_decay;
};
template <class M>
HostRun<M> start(std::int64_t n, std::uint64_t seed, float weight_decay) {
  return {test::uniform<float>(n, seed), test::uniform<M>(n, seed + 1, -0.1, 0.1),
          test::uniform<M>(n, seed + 2, 0, 0.01), weight_decay};
}

/// Runs in device memory, each with its own tensors, and their table.
template <class M>
class DeviceRuns {
 public:
  /// Every tensor begins `shift` elements into its memory. All runs but every third one have their masters rounded.
  DeviceRuns(Device& device, const std::vector<HostRun<M>>& host, std::int64_t shift = 0) : device_(device) {
    for (const HostRun<M>& run : host) {
      const bool rounds = runs_.size() % 3 != 1;
      runs_.push_back({shifted(run.master, shift), shifted(run.m, shift), shifted(run.v, shift),
                       shifted(std::vector<float>(run.master.size(), nan), shift), run.weight_decay,
                       rounds ? shifted(rounded(run.master), shift) : Tensor{}});
    }
    table_ = AdamWTable(runs_);
    table_.bind(device.allocate(Category::optimizer, DType::u8, {AdamWTable::bytes_of(std::ssize(host))}));
    device.upload(device.compute(), table_);
  }
  const AdamWTable& table() const { return table_; }
  const Tensor& master(std::size_t run) const { return runs_[run].master; }
  void set_gradient(std::size_t run, const std::vector<float>& gradient) {
    device_.upload(device_.compute(), runs_[run].gradient, gradient.data());
  }
  ::testing::AssertionResult equal(const std::vector<HostRun<M>>& host) const {
    for (std::size_t i = 0; i < host.size(); ++i) {
      const auto same = [&]<class T>(const Tensor& part, const std::vector<T>& expected) {
        return test::same_bits(test::on_host<T>(device_, part), expected);
      };
      if (host[i].master.empty()) continue;
      if (auto result = same(runs_[i].master, host[i].master); !result) return result << " (master " << i << ")";
      if (auto result = same(runs_[i].m, host[i].m); !result) return result << " (m " << i << ")";
      if (auto result = same(runs_[i].v, host[i].v); !result) return result << " (v " << i << ")";
      if (!runs_[i].rounded) continue;
      if (auto result = same(runs_[i].rounded, rounded(host[i].master)); !result)
        return result << " (rounded " << i << ")";
    }
    return ::testing::AssertionSuccess();
  }

 private:
  static std::vector<bf16> rounded(const std::vector<float>& masters) { return {masters.begin(), masters.end()}; }
  template <class T>
  Tensor shifted(const std::vector<T>& values, std::int64_t shift) {
    const auto n = std::ssize(values);
    const Tensor part = device_.allocate(Category::optimizer, dtype_of<T>, {n + shift}).flat(shift, n);
    device_.upload(device_.compute(), part, values.data());
    return part;
  }

  Device& device_;
  std::vector<AdamWRange> runs_;
  AdamWTable table_;
};

template <class M>
class AdamWTest : public ::testing::Test {};
using Moments = ::testing::Types<float, bf16>;
TYPED_TEST_SUITE(AdamWTest, Moments);

/// Runs of these lengths, with and without decay by turns.
template <class M>
std::vector<HostRun<M>> runs_of(const std::vector<std::int64_t>& lengths) {
  std::vector<HostRun<M>> runs;
  for (const std::int64_t n : lengths)
    runs.push_back(start<M>(n, 10 * runs.size() + 1, runs.size() % 2 == 0 ? 0.1f : 0.0f));
  return runs;
}

TYPED_TEST(AdamWTest, EqualsItsReferenceToTheBitOverSteps) {
  const std::vector<std::vector<std::int64_t>> tables{
      {1}, {31}, {2048}, {5003}, {0, 7, 2049, 0, 0, 4096, 1, 2047, 300, 0}, std::vector<std::int64_t>(300, 65)};
  Device device;
  Stream& stream = device.compute();
  const AdamWCoefficients coefficients{0.9, 0.95, 1e-8};
  for (const std::vector<std::int64_t>& lengths : tables)
    for (const std::int64_t shift : {0, 1}) {  // a GPU moves unaligned tensors in another way
      auto expected = runs_of<TypeParam>(lengths);
      DeviceRuns<TypeParam> runs(device, expected, shift);
      AdamWClock clock;
      const Cell<AdamWClock> device_clock(device, clock);
      for (std::uint64_t step = 0; step < 4; ++step) {
        const ClipResult clip{3.5f, step == 0 ? 1.0f : 0.3f / static_cast<float>(step), step == 2 ? 1 : 0};
        const float rate = 1e-3f * static_cast<float>(step + 1);
        const Cell<ClipResult> device_clip(device, clip);
        const Cell<float> device_rate(device, rate);
        reference::adamw_advance(coefficients, clock, clip);
        for (std::size_t i = 0; i < lengths.size(); ++i) {
          auto gradient = test::uniform<float>(lengths[i], 1000 * (step + 1) + i, -2, 2);
          if (step == 2 && !gradient.empty()) gradient[0] = nan;
          runs.set_gradient(i, gradient);
          HostRun<TypeParam>& run = expected[i];
          reference::adamw_step<TypeParam>(coefficients, run.weight_decay, run.master, run.m, run.v, gradient, clock,
                                           clip, rate);
        }
        const std::int64_t launches = stream.launches();
        adamw_step(stream, coefficients, runs.table(), device_clock.get(), device_clip.get(), device_rate.get());
        EXPECT_EQ(stream.launches() - launches, 1) << "whatever the number of runs";
        EXPECT_TRUE(runs.equal(expected)) << lengths.size() << " runs, the first of " << lengths[0] << ", step " << step
                                          << ", shift " << shift;
      }
      EXPECT_EQ(device_clock.value().t, 3) << "a skipped step is not applied";
      EXPECT_EQ(device_clock.value().beta1_power, 0.9 * 0.9 * 0.9);
      EXPECT_EQ(device_clock.value().beta2_power, 0.95 * 0.95 * 0.95);
    }
}

TYPED_TEST(AdamWTest, ASkippedStepChangesNothing) {
  Device device;
  const auto before = runs_of<TypeParam>({300, 5000});
  const DeviceRuns<TypeParam> runs(device, before);  // whose gradients are NaN
  const Cell<ClipResult> clip(device, {nan, nan, 1});
  const Cell<AdamWClock> clock(device, {7, 0.5, 0.6});
  const Cell<float> rate(device, 1.0f);
  adamw_step(device.compute(), {}, runs.table(), clock.get(), clip.get(), rate.get());
  EXPECT_TRUE(runs.equal(before));
  EXPECT_EQ(clock.value().t, 7);
  EXPECT_EQ(clock.value().beta1_power, 0.5);
  EXPECT_EQ(clock.value().beta2_power, 0.6);
}

// Runs that are neighbours in memory: each changes only its own elements, with its own decay.
TEST(AdamW, WritesNothingBetweenRuns) {
  constexpr std::int64_t n = 5000, gap = 3, all = 3 * (n + gap);
  Device device;
  const std::vector<float> ones(all, 1), poison(all, nan);
  const Tensor master = test::on_device(device, ones), m = test::on_device(device, poison),
               v = test::on_device(device, poison), gradient = test::on_device(device, poison);
  std::vector<AdamWRange> runs;
  for (int i = 0; i < 3; ++i) {
    const auto part = [&](const Tensor& whole) { return whole.flat(i * (n + gap), n); };
    const std::vector<float> zeros(n, 0);
    for (const Tensor& whole : {m, v, gradient}) device.upload(device.compute(), part(whole), zeros.data());
    runs.push_back({part(master), part(m), part(v), part(gradient), 0.25f * static_cast<float>(i)});
  }
  AdamWTable table(runs);
  table.bind(device.allocate(Category::optimizer, DType::u8, {AdamWTable::bytes_of(3)}));
  device.upload(device.compute(), table);
  const Cell<AdamWClock> clock(device, {});
  const Cell<ClipResult> clip(device, {});
  const Cell<float> rate(device, 1.0f);
  adamw_step(device.compute(), {}, table, clock.get(), clip.get(), rate.get());
  const auto masters = test::on_host<float>(device, master), first = test::on_host<float>(device, m);
  for (std::int64_t i = 0; i < all; ++i) {
    const std::int64_t run = i / (n + gap);
    const bool inside = i % (n + gap) < n;
    ASSERT_EQ(masters[static_cast<std::size_t>(i)], inside ? 1 - 0.25f * static_cast<float>(run) : 1) << i;
    ASSERT_EQ(std::isnan(first[static_cast<std::size_t>(i)]), !inside) << i;
  }
}

// The formula itself in double, so that kernel and reference cannot share a mistake: first step, where m/c1 = g and
// sqrt(v/c2) = |g|.
TEST(AdamW, FirstStepMovesByTheRateAgainstTheSign) {
  Device device;
  const std::vector<float> weights{1, -2, 0.5f, 3}, gradients{0.3f, -4, 1e-4f, 0}, zeros(4, 0);
  const std::vector<HostRun<float>> before{{weights, zeros, zeros, 0.1f}};
  DeviceRuns<float> runs(device, before);
  runs.set_gradient(0, gradients);
  const Cell<AdamWClock> clock(device, {});
  const Cell<ClipResult> clip(device, {});
  const Cell<float> rate(device, 0.01f);
  adamw_step(device.compute(), {0.9, 0.95, 1e-8}, runs.table(), clock.get(), clip.get(), rate.get());
  std::vector<double> expected;
  for (std::size_t i = 0; i < 4; ++i) {
    const double g = gradients[i], w = weights[i];
    expected.push_back(w - 0.01 * (g / (std::abs(g) + 1e-8) + 0.1 * w));
  }
  EXPECT_TRUE(test::near(test::on_host<float>(device, runs.master(0)), expected, 1e-6));
}

// Ranks with empty slices advance the clock too.
TEST(AdamW, TheClockOfAnEmptyTableAdvances) {
  for (const std::vector<std::int64_t>& lengths : {std::vector<std::int64_t>{}, {0}, {0, 0}}) {
    Device device;
    const DeviceRuns<float> runs(device, runs_of<float>(lengths));
    const Cell<AdamWClock> clock(device, {4, 0.5, 0.25});
    const Cell<ClipResult> clip(device, {});
    const Cell<float> rate(device, 1.0f);
    for (int step = 0; step < 2; ++step)
      adamw_step(device.compute(), {0.5, 0.25, 1e-8}, runs.table(), clock.get(), clip.get(), rate.get());
    EXPECT_EQ(clock.value().t, 6);
    EXPECT_EQ(clock.value().beta1_power, 0.125);
    EXPECT_EQ(clock.value().beta2_power, 0.015625);
  }
}

TEST(AdamW, RefusesOtherTypesAndSizes) {
  Device device;
  const Tensor four = test::poisoned<float>(device, {4}), five = test::poisoned<float>(device, {5});
  const Tensor half = test::poisoned<bf16>(device, {4});
  const auto table = [](const std::vector<AdamWRange>& runs) { return AdamWTable(runs); };
  EXPECT_NO_THROW(table({{four, four, four, four}}));
  EXPECT_THROW(table({{four, four, four, five}}), Error);
  EXPECT_THROW(table({{four, five, four, four}}), Error);
  EXPECT_THROW(table({{half, four, four, four}}), Error);
  EXPECT_THROW(table({{four, half, four, four}}), Error);
  EXPECT_THROW(table({{four, four, four, half}}), Error);
  EXPECT_THROW(table({{four, four, four, four}, {four, half, half, four}}), Error);
  AdamWTable one = table({{four, four, four, four}});
  EXPECT_THROW(one.bind(four), Error) << "of another size";
  EXPECT_THROW(adamw_step(device.compute(), {}, one, nullptr, nullptr, nullptr), Error) << "not bound";
}

}  // namespace
}  // namespace tessera
