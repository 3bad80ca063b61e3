#include "core/params/state.hpp"

#include <gtest/gtest.h>

namespace tessera {
namespace {

TEST(WeightMachine, CountsOneEpochAStep) {
  WeightMachine machine;
  for (int step = 1; step <= 3; ++step) {
    machine.to(WeightState::staged);
    machine.to(WeightState::staged);
    machine.to(WeightState::in_flight);
    machine.to(WeightState::gathered);
    machine.to(WeightState::ready);
    EXPECT_EQ(machine.epoch(), step);
    machine.to(WeightState::stale);
  }
}

// Illegal transitions of the state machines. tests/mpi compares ParamSync's use of them with a model.
TEST(WeightMachine, HandsOutNothingThatWasNotGathered) {
  WeightMachine machine;
  EXPECT_THROW(machine.to(WeightState::ready), StateError);
  EXPECT_THROW(machine.to(WeightState::in_flight), StateError);
  machine.to(WeightState::staged);
  EXPECT_THROW(machine.to(WeightState::gathered), StateError);
  machine.to(WeightState::in_flight);
  EXPECT_THROW(machine.to(WeightState::staged), StateError);
  EXPECT_THROW(machine.to(WeightState::ready), StateError);
  EXPECT_EQ(machine.state(), WeightState::in_flight);
}

TEST(GradientMachine, StepsNothingThatWasNotReduced) {
  GradientMachine machine;
  EXPECT_THROW(machine.to(GradientState::reduced), StateError);
  machine.to(GradientState::accumulating);
  EXPECT_THROW(machine.to(GradientState::reduced), StateError);
  machine.to(GradientState::reducing);
  EXPECT_THROW(machine.to(GradientState::accumulating), StateError);
  EXPECT_THROW(machine.to(GradientState::empty), StateError);
  EXPECT_EQ(machine.state(), GradientState::reducing);
}

TEST(WeightMachine, OfVisitsGivesItsPlaceBackAsOftenAsItIsUsed) {
  WeightMachine always, visiting({}, Residing::visiting);
  for (WeightMachine* machine : {&always, &visiting})
    for (WeightState next : {WeightState::staged, WeightState::in_flight, WeightState::gathered, WeightState::ready})
      machine->to(next);
  EXPECT_THROW(always.to(WeightState::staged), StateError);
  visiting.to(WeightState::staged);
  visiting.to(WeightState::in_flight);
  EXPECT_THROW(visiting.to(WeightState::stale), StateError);
  visiting.to(WeightState::gathered);
  visiting.to(WeightState::ready);
  visiting.to(WeightState::staged);
  EXPECT_EQ(visiting.epoch(), 1);
  visiting.to(WeightState::stale);
  visiting.to(WeightState::staged);
  EXPECT_EQ(visiting.epoch(), 2);
}

TEST(GradientMachine, OfVisitsReducesEachMicroBatch) {
  GradientMachine machine({}, Residing::visiting);
  for (int micro_batch = 0; micro_batch < 3; ++micro_batch) {
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
