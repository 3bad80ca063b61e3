#include "core/comm/alarm.hpp"

#include <gtest/gtest.h>
#include <unistd.h>

#include <optional>
#include <thread>

namespace tessera {
namespace {

using std::chrono::seconds;

void stay() {
  while (true) ::pause();
}

TEST(AlarmDeathTest, EndsAProcessThatIsHeld) {
  const auto held = [] {
    const Alarm alarm(seconds(1), Exit::communication, "has waited for the network");
    stay();
  };
  EXPECT_EXIT(held(), testing::ExitedWithCode(7), "has waited for the network\n");
}

TEST(AlarmDeathTest, AnInnerOneCountsAndGivesWayToTheOuterOne) {
  const auto shortest_inside = [] {
    const Alarm outer(seconds(100), Exit::communication, "outer");
    const Alarm inner(seconds(1), Exit::file, "inner");
    stay();
  };
  EXPECT_EXIT(shortest_inside(), testing::ExitedWithCode(5), "inner\n");
  const auto shortest_outside = [] {
    const Alarm outer(seconds(2), Exit::communication, "outer");
    std::optional<Alarm> inner;
    inner.emplace(seconds(100), Exit::file, "inner");
    inner.reset();
    stay();
  };
  EXPECT_EXIT(shortest_outside(), testing::ExitedWithCode(7), "outer\n");
}

TEST(AlarmDeathTest, IsNoneWhenItHasGone) {
  { const Alarm alarm(seconds(1), Exit::communication, "gone"); }
  std::this_thread::sleep_for(std::chrono::milliseconds(1300));
  EXPECT_EQ(::alarm(0), 0U);
}

}  // namespace
}  // namespace tessera
