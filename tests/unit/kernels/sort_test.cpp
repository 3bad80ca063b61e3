#include "kernels/sort/sort.hpp"

#include <gtest/gtest.h>

#include "tests/reference/sort.hpp"
#include "tests/support/compare.hpp"
#include "tests/support/on_device.hpp"

namespace tessera {
namespace {

using Keys = std::vector<std::int32_t>;

struct Sort {
  Device device;
  Arena arena = device.arena(Category::activations, 4 << 20);

  reference::Sorted operator()(const Keys& keys, std::int32_t bound) {
    const Tensor in = test::on_device(device, keys), order = test::poisoned(device, DType::i32, in.shape);
    const Tensor offsets = test::poisoned(device, DType::i32, {bound + 1});
    sort_by_key(device.compute(), arena, order, offsets, in);
    return {test::on_host<std::int32_t>(device, order), test::on_host<std::int32_t>(device, offsets)};
  }
};

// Some keys often, some never.
Keys skewed(std::int64_t n, std::int32_t bound) {
  Keys keys;
  for (double x : test::uniform<double>(n, 11, 0, 1)) keys.push_back(static_cast<std::int32_t>(x * x * x * bound));
  return keys;
}

TEST(SortByKey, IsStableForAnySizeAndNumberOfDigits) {
  Sort sort;
  for (std::int32_t bound : {1, 2, 3, 8, 256, 257, 5000, 70000}) {
    for (std::int64_t n : {1, 2, 255, 256, 257, 1500}) {
      const Keys keys = skewed(n, bound);
      const reference::Sorted actual = sort(keys, bound), expected = reference::sort_by_key(keys, bound);
      EXPECT_TRUE(test::same_bits(actual.order, expected.order)) << n << " keys below " << bound;
      EXPECT_TRUE(test::same_bits(actual.offsets, expected.offsets)) << n << " keys below " << bound;
    }
  }
}

TEST(SortByKey, TakesFirstAndLastKeyAloneAndNone) {
  Sort sort;
  EXPECT_EQ(sort(Keys(300, 0), 300).offsets.at(1), 300);
  EXPECT_EQ(sort(Keys(300, 299), 300).offsets.at(299), 0);
  EXPECT_EQ(sort(Keys(300, 299), 300).order.back(), 299);
  EXPECT_TRUE(test::same_bits(sort({}, 5).offsets, Keys(6, 0)));
}

TEST(SortByKey, GivesItsTemporariesBack) {
  Sort sort;
  sort(skewed(1000, 300), 300);
  const std::int64_t once = sort.arena.peak();
  sort(skewed(1000, 300), 300);
  EXPECT_GT(once, 0);
  EXPECT_EQ(sort.arena.peak(), once);
}

TEST(SortByKey, RefusesWhatDoesNotFit) {
  Sort sort;
  const auto i32 = [&](std::int64_t n) { return test::poisoned(sort.device, DType::i32, {n}); };
  EXPECT_THROW(sort_by_key(sort.device.compute(), sort.arena, i32(3), i32(5), i32(4)), Error);
  EXPECT_THROW(sort_by_key(sort.device.compute(), sort.arena, i32(4), i32(1), i32(4)), Error);
}

}  // namespace
}  // namespace tessera
