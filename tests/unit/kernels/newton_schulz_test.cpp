#include "kernels/newton_schulz/newton_schulz.hpp"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "tests/reference/newton_schulz.hpp"
#include "tests/support/compare.hpp"
#include "tests/support/on_device.hpp"
#include "tests/support/tolerances.hpp"

namespace tessera {
namespace {

constexpr NewtonSchulzStep quintic[] = {{4.0848f, -6.8946f, 2.9270f},
                                        {3.9505f, -6.3029f, 2.6377f},
                                        {3.7418f, -5.5913f, 2.3037f},
                                        {2.8769f, -3.1427f, 1.2046f},
                                        {2.8366f, -3.0525f, 1.2012f}};

struct HostMatrix {
  std::int64_t rows, columns;
  std::vector<float> values;
};
HostMatrix drawn(std::int64_t rows, std::int64_t columns, std::uint64_t seed, double size = 1) {
  return {rows, columns, test::uniform<float>(rows * columns, seed, -size, size)};
}

/// Matrices packed in device memory, after newton_schulz().
std::vector<std::vector<float>> orthogonal(const std::vector<HostMatrix>& matrices,
                                           std::span<const NewtonSchulzStep> steps = quintic) {
  Device device;
  std::int64_t all = 1, at = 1;  // odd offsets
  for (const HostMatrix& m : matrices) all += m.rows * m.columns + 2;
  const Tensor memory = test::poisoned<float>(device, {all});
  std::vector<Tensor> tensors;
  for (const HostMatrix& m : matrices) {
    tensors.push_back(memory.flat(at, m.rows * m.columns).view({m.rows, m.columns}));
    device.upload(device.compute(), tensors.back(), m.values.data());
    at += m.rows * m.columns + 2;
  }
  NewtonSchulzTable table(tensors);
  EXPECT_THROW(newton_schulz(device.compute(), steps, table), Error) << "not bound";
  table.bind(device.allocate(Category::optimizer, DType::u8, {NewtonSchulzTable::bytes_of(table.count())}));
  device.upload(device.compute(), table);
  newton_schulz(device.compute(), steps, table);
  std::vector<std::vector<float>> results;
  for (const Tensor& t : tensors) results.push_back(test::on_host<float>(device, t));
  const std::vector<float> everything = test::on_host<float>(device, memory);
  EXPECT_TRUE(std::isnan(everything.front()) && std::isnan(everything.back())) << "what lies around them is untouched";
  return results;
}

double norm(const std::vector<float>& v) {
  double sum = 0;
  for (float x : v) sum += static_cast<double>(x) * x;
  return std::sqrt(sum);
}
double distance(const std::vector<float>& a, const std::vector<float>& b) {
  if (a.empty() || a.size() != b.size()) return std::numeric_limits<double>::infinity();
  std::vector<float> difference;
  for (std::size_t i = 0; i < a.size(); ++i) difference.push_back(a[i] - b[i]);
  return norm(difference) / norm(b);
}

constexpr std::pair<std::int64_t, std::int64_t> shapes[] = {{1, 1},   {1, 9},   {9, 1},    {2, 3},     {8, 8},
                                                            {16, 40}, {33, 17}, {64, 200}, {200, 136}, {131, 259}};

TEST(NewtonSchulz, EqualsItsReference) {
  for (const auto& [rows, columns] : shapes) {
    const HostMatrix matrix = drawn(rows, columns, static_cast<std::uint64_t>(rows * 1000 + columns));
    const auto got = orthogonal({matrix}).front();
    const auto expected = reference::newton_schulz(matrix.values, rows, columns, quintic);
    EXPECT_LE(distance(got, expected), test::tolerances::newton_schulz) << rows << " x " << columns;
  }
}

// U O^T is symmetric and O O^T the identity, for the nearest orthogonal O. Its singular values are 1 or close to it.
TEST(NewtonSchulz, MakesRowsOrthogonal) {
  const HostMatrix matrix = drawn(24, 96, 5);
  const auto o = orthogonal({matrix}).front();
  for (std::size_t i = 0; i < 24; ++i)
    for (std::size_t j = 0; j < 24; ++j) {
      double sum = 0;
      for (std::size_t k = 0; k < 96; ++k) sum += static_cast<double>(o[i * 96 + k]) * o[j * 96 + k];
      EXPECT_LE(std::abs(sum - (i == j ? 1 : 0)), 0.2) << i << ", " << j;
    }
}

TEST(NewtonSchulz, KnowsNoSizeAndNoSign) {
  const HostMatrix one = drawn(20, 30, 7), large = [&] {
    HostMatrix scaled = one;
    for (float& v : scaled.values) v *= -0x1p40f;
    return scaled;
  }();
  const auto a = orthogonal({one}).front();
  auto b = orthogonal({large}).front();
  for (float& v : b) v = -v;
  EXPECT_TRUE(test::same_bits(a, b)) << "a power of two and a sign are exact";
}

TEST(NewtonSchulz, TheTransposeGivesTheTranspose) {
  const HostMatrix wide = drawn(19, 45, 11);
  HostMatrix tall{45, 19, std::vector<float>(wide.values.size())};
  for (std::size_t i = 0; i < 19; ++i)
    for (std::size_t j = 0; j < 45; ++j) tall.values[j * 19 + i] = wide.values[i * 45 + j];
  const auto of_wide = orthogonal({wide}).front(), of_tall = orthogonal({tall}).front();
  std::vector<float> back(of_wide.size());
  for (std::size_t i = 0; i < 19; ++i)
    for (std::size_t j = 0; j < 45; ++j) back[i * 45 + j] = of_tall[j * 19 + i];
  // The norm's sum is in memory order, so its last bit may differ, and with it a bf16.
  EXPECT_LE(distance(back, of_wide), test::tolerances::newton_schulz);
}

TEST(NewtonSchulz, TheBitsOfAMatrixAreItsOwn) {
  std::vector<HostMatrix> matrices;
  for (const auto& [rows, columns] : shapes)
    for (int copy = 0; copy < 2; ++copy)
      matrices.push_back(drawn(rows, columns, matrices.size() + 1, copy == 0 ? 1 : 1e-3));
  const auto together = orthogonal(matrices);
  std::vector<HostMatrix> reversed(matrices.rbegin(), matrices.rend());
  const auto backwards = orthogonal(reversed);
  for (std::size_t i = 0; i < matrices.size(); ++i) {
    EXPECT_TRUE(test::same_bits(orthogonal({matrices[i]}).front(), together[i])) << i;
    EXPECT_TRUE(test::same_bits(backwards[matrices.size() - 1 - i], together[i])) << i;
  }
}

TEST(NewtonSchulz, ZeroStaysZeroAndNaNStaysInItsMatrix) {
  HostMatrix zero{6, 10, std::vector<float>(60, 0)}, lost = drawn(6, 10, 3);
  lost.values[17] = std::numeric_limits<float>::quiet_NaN();
  const HostMatrix sound = drawn(6, 10, 4);
  const auto results = orthogonal({lost, zero, sound});
  EXPECT_TRUE(test::all_nan(results[0]));
  EXPECT_EQ(results[1], zero.values);
  EXPECT_TRUE(test::same_bits(results[2], orthogonal({sound}).front()));
}

TEST(NewtonSchulz, WithoutAStepItOnlyNormalises) {
  const HostMatrix matrix{2, 2, {3, 0, 0, 4}};
  const std::vector<double> expected{0.6, 0, 0, 0.8};
  EXPECT_TRUE(test::near(orthogonal({matrix}, {}).front(), expected, test::tolerance<bf16>));
}

TEST(NewtonSchulz, AllocatesNothingAfterADryPassHasPlannedIt) {
  const auto make = [](Device& device) {
    const Tensor matrix = device.allocate(Category::activations, DType::f32, {40, 72});
    NewtonSchulzTable table(std::vector{matrix});
    table.bind(device.allocate(Category::optimizer, DType::u8, {NewtonSchulzTable::bytes_of(1)}));
    device.upload(device.compute(), table);
    return table;
  };
  Device measuring(Device::Kind::measuring), device;
  newton_schulz(measuring.compute(), quintic, make(measuring));
  const NewtonSchulzTable table = make(device);
  for (const Workspace& place : measuring.compute().workspaces())
    device.compute().workspace(place.purpose, place.bytes);
  const std::int64_t before = device.allocations();
  newton_schulz(device.compute(), quintic, table);
  EXPECT_EQ(device.allocations(), before);
}

TEST(NewtonSchulz, RefusesWhatIsNoMatrix) {
  Device device;
  const auto table = [](const Tensor& t) { return NewtonSchulzTable(std::vector{t}); };
  EXPECT_THROW(table(test::poisoned<float>(device, {4})), Error);
  EXPECT_THROW(table(test::poisoned<bf16>(device, {2, 2})), Error);
  EXPECT_THROW(table(test::poisoned<float>(device, {0, 2})), Error);
  const NewtonSchulzTable one = table(test::poisoned<float>(device, {2, 2}));
  EXPECT_THROW(newton_schulz(device.compute(), quintic, one), Error) << "without a place";
  EXPECT_NO_THROW(newton_schulz(device.compute(), quintic, NewtonSchulzTable())) << "nothing to do";
}

}  // namespace
}  // namespace tessera
