#include "app/training/loop/step_timeout.hpp"

#include <gtest/gtest.h>

namespace tessera {
namespace {

using namespace std::chrono_literals;

/// What waits inside steps may take after turns of these lengths, by the deck's time-out (0: left open).
std::chrono::seconds after(std::initializer_list<StepTimeout::Clock::duration> turns, int timeout_s = 0) {
  CommConfig comm;
  if (timeout_s > 0) comm.timeout_s = std::int64_t{timeout_s};
  StepTimeout patience(comm);
  StepTimeout::Clock::time_point now{};
  std::chrono::seconds limit = patience.begin_turn(now);
  for (const auto turn : turns) limit = patience.begin_turn(now += turn);
  EXPECT_EQ(patience.outside(), timeout_s > 0 ? std::chrono::seconds(timeout_s) : 300s);
  return limit;
}

TEST(StepTimeout, TwentyTurnsAreSeenFirst) {
  EXPECT_EQ(after({}), 300s);
  EXPECT_EQ(after({1s, 1s, 1s, 1s, 1s, 1s, 1s, 1s, 1s, 1s, 1s, 1s, 1s, 1s, 1s, 1s, 1s, 1s, 1s}), 300s);
  EXPECT_EQ(after({1s, 1s, 1s, 1s, 1s, 1s, 1s, 1s, 1s, 1s, 1s, 1s, 1s, 1s, 1s, 1s, 1s, 1s, 1s, 1s}), 30s);
}

TEST(StepTimeout, IsTwentyTimesTheLongestTurn) {
  EXPECT_EQ(after({1s, 1s, 1s, 1s, 1s, 2s, 1s, 1s, 1s, 1s, 1s, 1s, 1s, 1s, 1s, 1s, 1s, 1s, 1s, 1s}), 40s);
  EXPECT_EQ(after({1s, 1s, 1s, 1s, 1s, 1s, 1s, 1s, 1s, 1s, 1s, 1s, 1s, 1s, 1s, 1s, 1s, 1s, 1s, 1s, 1510ms}), 31s);
  EXPECT_EQ(after({9s, 9s, 9s, 9s, 9s, 9s, 9s, 9s, 9s, 9s, 9s, 9s, 9s, 9s, 9s, 9s, 9s, 9s, 9s, 99s}), 300s);
}

TEST(StepTimeout, OfADeckThatGivesItIsThat) {
  EXPECT_EQ(after({}, 7), 7s);
  EXPECT_EQ(after({1s, 1s, 1s, 1s, 1s, 1s, 1s, 1s, 1s, 1s, 1s, 1s, 1s, 1s, 1s, 1s, 1s, 1s, 1s, 1s}, 7), 7s);
  EXPECT_EQ(after({9s, 9s, 9s, 9s, 9s, 9s, 9s, 9s, 9s, 9s, 9s, 9s, 9s, 9s, 9s, 9s, 9s, 9s, 9s, 9s}, 7), 7s);
}

}  // namespace
}  // namespace tessera
