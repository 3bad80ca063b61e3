#include "kernels/optim/muon.hpp"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "tests/reference/muon.hpp"
#include "tests/support/compare.hpp"
#include "tests/support/on_device.hpp"

namespace tessera {
namespace {

constexpr float nan = std::numeric_limits<float>::quiet_NaN();

/// Parts in the form of the reference.
template <class M>
struct HostPart {
  std::vector<float> master, gradient;
  std::vector<M> momentum;
  double scale;
};
template <class M>
std::vector<HostPart<M>> parts_of(const std::vector<std::int64_t>& lengths) {
  std::vector<HostPart<M>> parts;
  for (const std::int64_t n : lengths) {
    const auto seed = static_cast<std::uint64_t>(10 * parts.size() + 1);
    parts.push_back({test::uniform<float>(n, seed), test::uniform<float>(n, seed + 1, -3, 3),
                     test::uniform<M>(n, seed + 2), 0.5 + static_cast<double>(parts.size())});
  }
  return parts;
}

/// Parts packed in device memory with gaps of NaN between them, and their table.
template <class M>
class DeviceParts {
 public:
  static constexpr std::int64_t gap = 3;

  DeviceParts(Device& device, const std::vector<HostPart<M>>& host) : device_(device) {
    std::int64_t all = gap;
    for (const auto& part : host) all += std::ssize(part.master) + gap;
    master_ = test::poisoned<float>(device, {all});
    gradient_ = test::poisoned<float>(device, {all});
    momentum_ = test::poisoned<M>(device, {all});
    std::vector<MuonPart> parts;
    for (std::int64_t at = gap; const auto& part : host) {
      const std::int64_t n = std::ssize(part.master);
      parts.push_back({master_.flat(at, n), momentum_.flat(at, n), gradient_.flat(at, n), part.scale});
      device.upload(device.compute(), parts.back().master, part.master.data());
      device.upload(device.compute(), parts.back().gradient, part.gradient.data());
      device.upload(device.compute(), parts.back().momentum, part.momentum.data());
      at += n + gap;
    }
    table_ = MuonTable(parts);
    table_.bind(device.allocate(Category::optimizer, DType::u8, {MuonTable::bytes_of(std::ssize(host))}));
    device.upload(device.compute(), table_);
  }
  const MuonTable& table() const { return table_; }

  /// Compares the parts, and checks that the gaps are unchanged.
  ::testing::AssertionResult equal(const std::vector<HostPart<M>>& host) const {
    if (auto result = same(master_, host, &HostPart<M>::master); !result) return result << " (master)";
    if (auto result = same(gradient_, host, &HostPart<M>::gradient); !result) return result << " (gradient)";
    return same(momentum_, host, &HostPart<M>::momentum) << " (momentum)";
  }

 private:
  template <class T>
  ::testing::AssertionResult same(const Tensor& whole, const std::vector<HostPart<M>>& host,
                                  std::vector<T> HostPart<M>::*values) const {
    const Tensor none = test::poisoned<T>(device_, {gap});
    const std::vector<T> between = test::on_host<T>(device_, none);
    std::vector<T> expected = between;
    for (const auto& part : host) {
      expected.insert(expected.end(), (part.*values).begin(), (part.*values).end());
      expected.insert(expected.end(), between.begin(), between.end());
    }
    return test::same_bits(test::on_host<T>(device_, whole), expected);
  }

  Device& device_;
  Tensor master_, gradient_, momentum_;
  MuonTable table_;
};

/// One value on the device.
template <class T>
T* on_device(Device& device, const T& value) {
  const Tensor bytes = device.allocate(Category::optimizer, DType::u8, {std::int64_t{sizeof(T)}});
  device.upload(device.compute(), bytes, &value);
  return static_cast<T*>(bytes.data);
}

template <class M>
class MuonTest : public ::testing::Test {};
using Moments = ::testing::Types<float, bf16>;
TYPED_TEST_SUITE(MuonTest, Moments);

TYPED_TEST(MuonTest, EqualsItsReferenceToTheBitOverSteps) {
  const std::vector<std::vector<std::int64_t>> tables{
      {1}, {2048}, {5003}, {7, 2049, 4096, 1, 2047, 300}, std::vector<std::int64_t>(100, 65)};
  for (const std::vector<std::int64_t>& lengths : tables)
    for (const bool nesterov : {true, false}) {
      Device device;
      Stream& stream = device.compute();
      auto expected = parts_of<TypeParam>(lengths);
      const DeviceParts<TypeParam> parts(device, expected);
      const MuonMomentum momentum{0.9, nesterov};
      for (int step = 0; step < 3; ++step) {
        const ClipResult clip{3.5f, step == 0 ? 1.0f : 0.3f, 0};
        const float rate = 1e-2f * static_cast<float>(step + 1);
        const ClipResult* const device_clip = on_device(device, clip);
        const std::int64_t launches = stream.launches();
        muon_momentum(stream, momentum, parts.table(), device_clip);
        for (auto& part : expected) reference::muon_momentum<TypeParam>(momentum, part.momentum, part.gradient, clip);
        ASSERT_TRUE(parts.equal(expected)) << lengths.size() << " parts, step " << step;
        muon_update(stream, 0.1, parts.table(), device_clip, on_device(device, rate));
        for (auto& part : expected) reference::muon_update(0.1, part.scale, part.master, part.gradient, clip, rate);
        ASSERT_TRUE(parts.equal(expected)) << lengths.size() << " parts, step " << step;
        EXPECT_EQ(stream.launches() - launches, 2) << "whatever the number of parts";
      }
    }
}

TYPED_TEST(MuonTest, ASkippedStepChangesNothing) {
  Device device;
  auto before = parts_of<TypeParam>({300, 5000});
  for (auto& part : before) part.gradient.assign(part.gradient.size(), nan);
  const DeviceParts<TypeParam> parts(device, before);
  const ClipResult* const clip = on_device(device, ClipResult{nan, nan, 1});
  muon_momentum(device.compute(), {}, parts.table(), clip);
  muon_update(device.compute(), 0.1, parts.table(), clip, on_device(device, 1.0f));
  EXPECT_TRUE(parts.equal(before));
}

// The formulas themselves in double, so that kernel and reference cannot share a mistake.
TEST(Muon, AveragesTheGradientAndStepsAgainstIt) {
  Device device;
  const std::vector<HostPart<float>> before{{{1, -2}, {0.5f, 4}, {0.25f, -1}, 3}};
  const DeviceParts<float> parts(device, before);
  const ClipResult* const clip = on_device(device, ClipResult{2, 0.5f, 0});
  muon_momentum(device.compute(), {0.8, true}, parts.table(), clip);
  muon_update(device.compute(), 0.25, parts.table(), clip, on_device(device, 0.125f));
  std::vector<double> masters;
  for (std::size_t i = 0; i < 2; ++i) {
    const double g = 0.5 * before[0].gradient[i], m = 0.8 * before[0].momentum[i] + 0.2 * g, u = 0.8 * m + 0.2 * g;
    masters.push_back(before[0].master[i] * (1 - 0.125 * 0.25) - 0.125 * 3 * u);
  }
  EXPECT_TRUE(test::near(test::on_host<float>(device, {parts.table().rows().front().master, DType::f32, {2}}), masters,
                         test::tolerance<float>));
}

TEST(Muon, AnEmptyTableIsNoWork) {
  Device device;
  MuonTable table;
  const ClipResult* const clip = on_device(device, ClipResult{});
  EXPECT_NO_THROW(muon_momentum(device.compute(), {}, table, clip));
  EXPECT_NO_THROW(muon_update(device.compute(), 0, table, clip, on_device(device, 1.0f)));
}

TEST(Muon, RefusesOtherTypesAndSizes) {
  Device device;
  const Tensor four = test::poisoned<float>(device, {4}), five = test::poisoned<float>(device, {5});
  const Tensor half = test::poisoned<bf16>(device, {4});
  const auto table = [](const std::vector<MuonPart>& parts) { return MuonTable(parts); };
  EXPECT_NO_THROW(table({{four, half, four}}));
  EXPECT_THROW(table({{four, four, five}}), Error);
  EXPECT_THROW(table({{four, five, four}}), Error);
  EXPECT_THROW(table({{half, four, four}}), Error);
  EXPECT_THROW(table({{four, four, half}}), Error);
  EXPECT_THROW(table({{four, four, four}, {four, half, four}}), Error);
  MuonTable one = table({{four, four, four}});
  EXPECT_THROW(one.bind(four), Error) << "of another size";
  EXPECT_THROW(muon_momentum(device.compute(), {}, one, nullptr), Error) << "not bound";
}

}  // namespace
}  // namespace tessera
