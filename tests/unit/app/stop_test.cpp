#include "app/training/loop/stop.hpp"

#include <gtest/gtest.h>
#include <unistd.h>

#include <csignal>
#include <cstring>
#include <future>

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
    ::kill(::getpid(), signal);
    for (int i = 0; i < 1000 && !stop.due(2, seconds(0), control); ++i) ::usleep(10'000);
    EXPECT_TRUE(stop.due(2, seconds(0), control)) << signal;
    EXPECT_EQ(stop.cause(), std::string("SIG") + sigabbrev_np(signal));
  }
}

// A thread that computes is never interrupted: oneDNN's products do not survive it.
TEST(Stop, OtherThreadsBlockItsSignals) {
  const Stop stop;
  const auto blocked = [] {
    sigset_t mask;
    pthread_sigmask(SIG_BLOCK, nullptr, &mask);
    for (int signal : {SIGTERM, SIGUSR1, SIGUSR2, SIGINT})
      if (sigismember(&mask, signal) != 1) return false;
    return true;
  };
  EXPECT_TRUE(blocked());
  EXPECT_TRUE(std::async(std::launch::async, blocked).get());
}

TEST(StopDeathTest, ASecondInterruptLaterThanASecondLeavesAtOnce) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");  // a fork has no listening thread
  EXPECT_EXIT(
      {
        const Stop stop;
        ::kill(::getpid(), SIGINT);
        ::usleep(1'500'000);
        ::kill(::getpid(), SIGINT);
        ::usleep(10'000'000);
      },
      testing::ExitedWithCode(static_cast<int>(Exit::internal)), "");
}

}  // namespace
}  // namespace tessera
