#include <gtest/gtest.h>

#include <random>
#include <string>

#include "core/comm/control.hpp"
#include "core/comm/wrapper.hpp"
#include "core/plan/plan.hpp"
#include "core/step/engine.hpp"
#include "tests/support/drawn_configs.hpp"

/// Captured and replayed steps of drawn configs, on a measuring device, whose dry streams are captured as a GPU's are.
/// Logs, states, epochs and counts must be those of eager steps.
namespace tessera {
namespace {

/// Logs operations as a back end on streams does.
class Logged final : public Wrapper {
 public:
  Logged(std::unique_ptr<Communicator> inner, CollectiveLog& log, const Stream& compute, int& ends)
      : Wrapper("logged", std::move(inner)), log_(log), compute_(compute), ends_(ends) {}

  Pending submit(Stream& stream, const Operation& operation) override {
    if (compute_.capturing()) log_.keep(operation);
    else log_.note(operation);
    return inner().submit(stream, operation);
  }
  bool on_streams() const override { return true; }
  const CollectiveLog* log() const override { return &log_; }
  void replayed(const Event&) override {
    log_.repeat();
    ++ends_;
  }

 private:
  CollectiveLog& log_;
  const Stream& compute_;
  int& ends_;
};

/// A dry run of some steps.
class DryRun {
 public:
  DryRun(const RunPlan& plan, bool graph) : plan_(plan), mesh_(planning_mesh(plan.ranks)) {
    plan_.graph = graph;
    mesh_.wrap([&](std::unique_ptr<Communicator> one) {
      return std::make_unique<Logged>(std::move(one), log_, device_.compute(), ends_);
    });
    engine_.emplace(device_, plan_, mesh_);
    engine_->initialise();
  }
  Engine& engine() { return *engine_; }
  ParamSync& sync() { return engine_->sync(); }
  const CollectiveLog& log() const { return log_; }
  int ends() const { return ends_; }

  void step() { engine_->step({{}, {}, plan_.sizes.local()}, {}); }
  void evaluate() { engine_->evaluate({{}, {}, plan_.sizes.micro}); }
  /// The epochs of the first group's weights, and of a parameter's gradients, as errors quote them.
  std::string epochs(ParamId param) {
    std::string all;
    {
      const Accumulating pass = sync().accumulate();
      const Use use = sync().operand(engine_->stream(), plan_.usage.training.front().param, Side::rowwise);
      all = refusal([&] { engine_->initialise(); });
    }
    const Reduced reduced = sync().accumulate().reduce(engine_->stream());
    return all + "; " + refusal([&] { sync().accumulate().slot(param); });
  }

 private:
  template <class F> static std::string refusal(const F& call) {
    try {
      call();
    } catch (const StateError& error) {
      return error.what();
    }
    return "nothing was refused";
  }

  RunPlan plan_;
  Device device_{Device::Kind::measuring};
  CollectiveLog log_;
  int ends_ = 0;
  Mesh mesh_;
  std::optional<Engine> engine_;
};

void expect_equal(DryRun& eager, DryRun& replayed) {
  ASSERT_EQ(replayed.log().noted(), eager.log().noted());
  ASSERT_EQ(replayed.log().tail(), eager.log().tail());
  ASSERT_EQ(replayed.log().chain(), eager.log().chain());
  ASSERT_EQ(replayed.sync().state(), eager.sync().state());
  ASSERT_EQ(replayed.sync().overlapped(), eager.sync().overlapped());
}

TEST(Replay, LeavesLogStatesAndCountsAsAnEagerStep) {
  constexpr int steps = 8;
  std::mt19937 random(11);
  int plans = 0, overlapping = 0;
  for (int number = 0; number < 120; ++number) {
    SCOPED_TRACE(number);
    const int ranks = 1 + number % 4;
    RunConfig config = test::untied::drawn(random, ranks);
    config.proof.expert_rows = ExpertRows::peers;  // without counts that the host reads
    const int evaluated = static_cast<int>(random() % (2 * steps));
    if (!refusals(config, ranks).empty()) continue;
    const RunPlan plan = resolve(config, ranks, ranks - 1);
    DryRun eager(plan, false), replayed(plan, true);
    for (int step = 0; step < steps; ++step) {
      for (DryRun* run : {&eager, &replayed}) {
        run->step();
        if (step == evaluated) run->evaluate();
      }
      expect_equal(eager, replayed);
      if (::testing::Test::HasFatalFailure()) return;
    }
    EXPECT_EQ(eager.engine().replays(), 0);
    EXPECT_GE(replayed.engine().replays(), steps - 4) << "two eager steps, one captured, one behind an evaluation";
    EXPECT_EQ(replayed.ends(), replayed.engine().replays() + 1) << "an end of the graph for each time it ran";
    const Overlapped overlapped = replayed.sync().overlapped();
    overlapping += overlapped.gathers > 0 && overlapped.reductions > 0;
    for (ParamId param : {ParamId{0}, ParamId{plan.registry.size() - 1}}) {
      const std::string epochs = eager.epochs(param);
      EXPECT_NE(epochs.find("epoch"), epochs.rfind("epoch")) << epochs;
      EXPECT_EQ(replayed.epochs(param), epochs);
    }
    ++plans;
  }
  EXPECT_GT(plans, 30);
  EXPECT_GT(overlapping, 5);
}

}  // namespace
}  // namespace tessera
