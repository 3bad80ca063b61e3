#include "core/params/state.hpp"

#include <gtest/gtest.h>

#include <vector>

namespace tessera {
namespace {

TEST(WeightMachine, CountsOneEpochAStep) {
  WeightMachine machine;
  for (int step = 1; step <= 3; ++step) {
    machine.to(WeightState::staged);
    EXPECT_EQ(machine.epoch(), step);
    EXPECT_THROW(machine.to(WeightState::staged), StateError);
    machine.to(WeightState::stale);
  }
  EXPECT_THROW(machine.to(WeightState::stale), StateError);
  EXPECT_THROW(machine.to(WeightState::ready), StateError);
}

// Illegal transitions of the state machines. tests/mpi compares ParamSync's use of them with a model.
TEST(SlotMachine, HandsOutNothingThatWasNotGatheredAndLosesNothingThatIsRead) {
  const std::vector<SlotState> round{SlotState::free, SlotState::in_flight, SlotState::gathered, SlotState::ready};
  SlotMachine machine;
  for (std::size_t i = 0; i < 9; ++i) {
    for (SlotState next : round) {
      if (next == round[(i + 1) % 4]) continue;
      EXPECT_THROW(machine.to(next, {}), StateError);
    }
    machine.to(round[(i + 1) % 4], {});
    EXPECT_EQ(machine.state(), round[(i + 1) % 4]);
  }
}

TEST(GradientMachine, StepsNothingThatWasNotReduced) {
  GradientMachine machine;
  EXPECT_THROW(machine.to(GradientState::reduced), StateError);
  machine.to(GradientState::accumulating);
  EXPECT_THROW(machine.to(GradientState::reduced), StateError);
  machine.to(GradientState::reducing);
  EXPECT_THROW(machine.to(GradientState::empty), StateError);
  EXPECT_EQ(machine.state(), GradientState::reducing);
}

TEST(GradientMachine, ReducesRoundByRound) {
  GradientMachine machine;
  for (int round = 0; round < 3; ++round) {
    machine.to(GradientState::accumulating);
    machine.to(GradientState::reducing);
  }
  machine.to(GradientState::reduced);
  EXPECT_THROW(machine.to(GradientState::accumulating), StateError);
}

TEST(StateError, NamesGroupEpochAndEdge) {
  WeightMachine machine(GroupId{7});
  try {
    machine.to(WeightState::ready);
    FAIL() << "an edge that does not exist was taken";
  } catch (const StateError& error) {
    EXPECT_STREQ(error.what(), "group 7, epoch 0: Stale -> Ready is not an edge of its state machine");
    EXPECT_EQ(error.code(), Exit::internal);
  }
}

}  // namespace
}  // namespace tessera
