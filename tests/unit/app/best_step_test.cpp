#include "app/training/loop/best_step.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <random>
#include <utility>
#include <vector>

namespace tessera {
namespace {

TEST(BestStep, IsTheFirstOfTheLowest) {
  std::mt19937 draw(3);
  for (int i = 0; i < 500; ++i) {
    BestStep best;
    std::vector<float> losses;
    EXPECT_EQ(best.step(), -1);
    for (std::size_t n = 1 + draw() % 12; n > 0; --n) {
      losses.push_back(draw() % 5 == 0 ? std::numeric_limits<float>::quiet_NaN() : static_cast<float>(draw() % 4));
      best.add(std::ssize(losses) * 10, losses.back());
    }
    std::int64_t wanted = -1;
    for (std::size_t k = 0; k < losses.size(); ++k)
      if (std::isfinite(losses[k]) && (wanted < 0 || losses[k] < losses[static_cast<std::size_t>(wanted)]))
        wanted = static_cast<std::int64_t>(k);
    EXPECT_EQ(best.step(), wanted < 0 ? -1 : (wanted + 1) * 10);
    EXPECT_EQ(best.since(), std::ssize(losses) - 1 - wanted);
    RunSection run;
    EXPECT_FALSE(best.enough(run)) << "0: any number may pass";
    for (run.stop_after = 1; run.stop_after < 12; ++run.stop_after)
      EXPECT_EQ(best.enough(run), best.since() >= run.stop_after);
    const std::vector<std::int64_t> order = best.by_loss();
    EXPECT_EQ(order.empty() ? -1 : order.front(), best.step());
    EXPECT_EQ(std::ssize(order), std::ranges::count_if(losses, [](float loss) { return std::isfinite(loss); }));
    const auto key = [&](std::int64_t n) { return std::pair(losses[static_cast<std::size_t>(n / 10 - 1)], n); };
    EXPECT_TRUE(std::ranges::is_sorted(order, {}, key));
  }
}

}  // namespace
}  // namespace tessera
