#include "core/comm/under_way.hpp"

#include <gtest/gtest.h>

#include <random>
#include <set>
#include <vector>

namespace tessera {
namespace {

using Numbers = UnderWay<std::vector<int>>;

// Entries are taken and freed in a drawn order.
TEST(UnderWay, GivesTheLowestNumberThatIsFree) {
  Numbers under_way;
  std::set<int> free;
  std::vector<int> taken;
  for (int i = 0; i < Numbers::most; ++i) free.insert(i);
  std::mt19937 bits(5);
  for (int i = 0; i < 2000; ++i) {
    if (free.empty() || (!taken.empty() && bits() % 5 < 2)) {
      std::swap(taken[bits() % taken.size()], taken.back());
      free.insert(taken.back());
      under_way.free(taken.back());
      taken.pop_back();
      continue;
    }
    const int number = under_way.take("test");
    ASSERT_EQ(number, *free.begin()) << i;
    free.erase(number);
    taken.push_back(number);
  }
}

TEST(UnderWay, RefusesOneMoreThanItHolds) {
  Numbers under_way;
  for (int i = 0; i < Numbers::most; ++i) EXPECT_EQ(under_way.take("test"), i);
  EXPECT_THROW(under_way.take("test"), Error);
  under_way.free(63);
  EXPECT_EQ(under_way.take("test"), 63);
}

TEST(UnderWay, KeepsTheMemoryOfAnEntry) {
  Numbers under_way;
  const int number = under_way.take("test");
  under_way[number].assign(100, 1);
  const int* const memory = under_way[number].data();
  under_way.free(number);
  EXPECT_EQ(under_way.take("test"), number);
  EXPECT_EQ(under_way[number].data(), memory);
  EXPECT_EQ(std::ssize(under_way.all()), Numbers::most);
}

}  // namespace
}  // namespace tessera
