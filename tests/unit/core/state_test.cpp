#include "core/params/state.hpp"

#include <gtest/gtest.h>

#include <map>
#include <random>
#include <set>

namespace tessera {
namespace {

template <class State> using Edges = std::map<State, std::set<State>>;

const Edges<WeightState> weight_edges{{WeightState::stale, {WeightState::staged}},
                                      {WeightState::staged, {WeightState::staged, WeightState::in_flight}},
                                      {WeightState::in_flight, {WeightState::gathered}},
                                      {WeightState::gathered, {WeightState::ready}},
                                      {WeightState::ready, {WeightState::stale}}};
const Edges<GradientState> gradient_edges{
    {GradientState::empty, {GradientState::accumulating, GradientState::reducing}},
    {GradientState::accumulating, {GradientState::reducing, GradientState::empty}},
    {GradientState::reducing, {GradientState::reduced}},
    {GradientState::reduced, {GradientState::empty}}};

/// Random legal and illegal calls: the machine moves exactly along the edges, and a refused call changes nothing.
template <class Machine, class State> void walk(const Edges<State>& edges, State start, int states) {
  std::mt19937 random(3);
  Machine machine(5);
  State expected = start;
  int refused = 0;
  for (int i = 0; i < 20000; ++i) {
    const auto next = static_cast<State>(random() % static_cast<unsigned>(states));
    if (edges.at(expected).contains(next)) {
      ASSERT_NO_THROW(machine.to(next));
      expected = next;
    } else {
      ASSERT_THROW(machine.to(next), StateError);
      ++refused;
    }
    ASSERT_EQ(machine.state(), expected);
  }
  EXPECT_GT(refused, 1000);
}

TEST(WeightMachine, FollowsItsEdges) { walk<WeightMachine>(weight_edges, WeightState::stale, 5); }
TEST(GradientMachine, FollowsItsEdges) { walk<GradientMachine>(gradient_edges, GradientState::empty, 4); }

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

TEST(StateError, NamesGroupEpochAndEdge) {
  WeightMachine machine(7);
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
