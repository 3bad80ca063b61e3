#include "kernels/optim/balance.hpp"

#include <gtest/gtest.h>

#include <limits>

#include "tests/reference/balance.hpp"
#include "tests/support/compare.hpp"
#include "tests/support/on_device.hpp"
#include "tests/support/shown.hpp"

namespace tessera {
namespace {

using test::on_device, test::on_host, test::same_bits;

/// Biases of routers of several sizes behind one another, with loads and elements of none between them.
struct Slice {
  explicit Slice(double all) : slots(all) {
    for (const std::size_t experts : {3, 70, 1, 8}) {
      const auto share = static_cast<float>(slots / static_cast<double>(experts));
      begins.push_back(bias.size());
      sizes.push_back(experts);
      for (std::size_t e = 0; e < experts; ++e) {
        bias.push_back(static_cast<float>(static_cast<int>(e % 5) - 2));
        number.push_back(static_cast<float>(experts));
        const float far = e % 2 == 0 ? 0.0f : std::numeric_limits<float>::max();
        const float close[] = {share - 1, share, share + 1, far};
        count.push_back(close[e % 4]);
      }
      for (const float kind : {BalanceKind::none, BalanceKind::load, BalanceKind::none}) {
        bias.push_back(5);
        number.push_back(kind);
        count.push_back(7);
      }
    }
  }
  double slots;
  std::vector<std::size_t> begins, sizes;
  std::vector<float> bias, count, number;
};

TEST(BalanceStep, EqualsReference) {
  Device device;
  // Shares that are whole, that are not, and of the largest counts that are exact.
  for (const double slots : {840.0, 1000.0, 1e7}) {
    SCOPED_TRACE(test::shown(slots));
    const Slice slice(slots);
    for (const float rate : {0.001f, 0.0f})
      for (const std::int32_t skip : {0, ClipResult::not_finite, ClipResult::spike}) {
        const ClipResult clip{7, 0.25f, skip};
        const Tensor result = device.allocate(Category::batch, DType::u8, {std::int64_t{sizeof clip}});
        device.upload(device.compute(), result, &clip);
        const Tensor bias = on_device(device, slice.bias);
        std::vector<float> wanted = slice.bias;
        for (int step = 0; step < 3; ++step) {
          balance_step(device.compute(), bias, on_device(device, slice.count), on_device(device, slice.number), rate,
                       slots, static_cast<const ClipResult*>(result.data));
          for (std::size_t i = 0; i < slice.begins.size(); ++i)
            reference::balance_step(std::span(wanted).subspan(slice.begins[i], slice.sizes[i]),
                                    std::span(slice.count).subspan(slice.begins[i], slice.sizes[i]), rate, slots, clip);
        }
        for (std::size_t i = 0; i < wanted.size(); ++i)
          if (slice.number[i] == BalanceKind::load && skip == 0) wanted[i] = 7;
        EXPECT_TRUE(same_bits(on_host<float>(device, bias), wanted)) << slots << " " << rate << " " << skip;
        EXPECT_EQ(wanted != slice.bias, skip == 0);
      }
  }
}

// Above 2^24 fp32 has no odd numbers, and a share need not be one that fp32 has: the comparison is in double.
TEST(BalanceStep, ComparesExactly) {
  Device device;
  const ClipResult clip{1, 1, 0};
  const Tensor result = device.allocate(Category::batch, DType::u8, {std::int64_t{sizeof clip}});
  device.upload(device.compute(), result, &clip);
  const Tensor bias = on_device(device, std::vector<float>{0, 0});
  balance_step(device.compute(), bias, on_device(device, std::vector<float>{16777214, 16777215}),
               on_device(device, std::vector<float>{2, 2}), 1, 33554429, static_cast<const ClipResult*>(result.data));
  EXPECT_EQ(on_host<float>(device, bias), (std::vector<float>{1, -1}));
}

TEST(BalanceStep, RefusesOtherSizes) {
  Device device;
  const Tensor two = on_device(device, std::vector<float>{0, 0}), three = on_device(device, std::vector<float>(3, 0));
  EXPECT_THROW(balance_step(device.compute(), two, three, two, 1, 1, nullptr), Error);
  EXPECT_THROW(balance_step(device.compute(), two, two, three, 1, 1, nullptr), Error);
}

}  // namespace
}  // namespace tessera
