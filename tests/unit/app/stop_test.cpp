#include "app/training/stop.hpp"

#include <gtest/gtest.h>
#include <unistd.h>

#include <csignal>
#include <cstring>

#include "kernels/base/error.hpp"
#include "tests/support/self_control.hpp"

namespace tessera {
namespace {

using std::chrono::seconds;

TEST(Stop, ComesAtItsStepAndAfter) {
  test::SelfControl control;
  Stop stop;
  stop.limit({5, {}});
  EXPECT_FALSE(stop.due(0, seconds(0), control));
  EXPECT_FALSE(stop.due(4, seconds(0), control));
  EXPECT_TRUE(stop.due(5, seconds(0), control));
  EXPECT_EQ(stop.cause(), "--stop-at");
  EXPECT_TRUE(stop.due(7, seconds(0), control));
}

TEST(Stop, LeavesTimeForASaveAsLongAsThoseBefore) {
  test::SelfControl control;
  Stop stop;
  stop.limit({{}, std::chrono::hours(10)});
  EXPECT_FALSE(stop.due(1, seconds(0), control));
  EXPECT_FALSE(stop.due(2, std::chrono::hours(5), control));
  EXPECT_TRUE(stop.due(3, std::chrono::hours(7), control));
  EXPECT_EQ(stop.cause(), "--time-limit");
}

TEST(Stop, LeavesTimeForAStepAsLongAsTheLongest) {
  test::SelfControl control;
  Stop stop;
  stop.limit({{}, seconds(2)});
  EXPECT_FALSE(stop.due(0, seconds(0), control));
  ::usleep(1'100'000);
  EXPECT_TRUE(stop.due(1, seconds(0), control));
}

TEST(Stop, HearsEverySignalThatItWatches) {
  test::SelfControl control;
  for (int signal : {SIGTERM, SIGUSR1, SIGUSR2, SIGINT}) {
    Stop stop;
    EXPECT_FALSE(stop.due(1, seconds(0), control)) << signal;
    std::raise(signal);
    if (signal != SIGINT) std::raise(signal);  // a late second INT would end the process
    EXPECT_TRUE(stop.due(2, seconds(0), control)) << signal;
    EXPECT_EQ(stop.cause(), std::string("SIG") + sigabbrev_np(signal));
  }
}

TEST(StopDeathTest, ASecondInterruptLaterThanASecondLeavesAtOnce) {
  const Stop stop;
  std::raise(SIGINT);
  EXPECT_EXIT(
      {
        ::usleep(1'100'000);
        std::raise(SIGINT);
      },
      testing::ExitedWithCode(static_cast<int>(Exit::internal)), "");
}

}  // namespace
}  // namespace tessera
