#include <gtest/gtest.h>

#include <map>

#include "core/optim/average.hpp"
#include "io/checkpoint/averages.hpp"
#include "io/checkpoint/folder.hpp"
#include "tests/reference/average.hpp"
#include "tests/support/checkpoint_trial.hpp"
#include "tests/support/shown.hpp"
#include "tests/support/small_runs.hpp"

// Moving averages of weights (optimizer.ema), with every optimizer, sharding and kind of weight.
namespace tessera {
namespace {

namespace fs = std::filesystem;
using namespace test;

RunConfig averaging(RunConfig config, double decay = 0.75) {
  config.optimizer.ema = decay;
  config.eval.every_steps = 2;
  config.eval.weights = EvaluatedWeights::ema;
  config.run.steps = 6;
  return config;
}

/// Runs of every kind that averages meet.
std::vector<RunConfig> kinds() {
  RunConfig muon = mixture(Compute::bf16), full = mixture(Compute::fp32), quantized = dense(Compute::bf16);
  muon.optimizer.matrices = MatrixRule::muon;
  muon.model.moe->bias = true;
  full.sharding = Sharding::full;
  quantized.model.seq_len = 32;  // a multiple of the blocks
  quantized.proof.cuts = GatherCuts::tile;
  quantized.precision.recipe = RecipeName::mxfp8;
  quantized.precision.primary_weights = PrimaryWeights::quantized;
  RunConfig whole = quantized;
  whole.sharding = Sharding::full;
  std::vector<RunConfig> all;
  for (const RunConfig& kind : {muon, full, quantized, whole, dense(Compute::fp32)}) all.push_back(averaging(kind));
  return all;
}

/// This rank's values of a state slot, by tensor and first element.
std::map<std::pair<std::string, std::int64_t>, std::vector<float>> values_of(Trial& run, const std::string& slot) {
  std::map<std::pair<std::string, std::int64_t>, std::vector<float>> values;
  const StateDict state = run.training().engine().fresh_state();
  for (const StateTensor& tensor : state.tensors)
    for (const StateRange& range : tensor.ranges) {
      if (tensor.slot != slot) continue;
      auto& to = values[{tensor.name, range.first}];
      to.resize(static_cast<std::size_t>(range.values.elements()));
      run.device().download(run.device().compute(), to.data(), range.values);
    }
  return values;
}

TEST(Averages, AreTheReferencesOfEveryStep) {
  for (const RunConfig& config : kinds()) {
    Trial run(config);
    run.training().begin([](const MetricsRow&) { return Problems(); });
    auto wanted = values_of(run, "model");
    EXPECT_EQ(values_of(run, Average::slot), wanted) << "they begin with the first weights";
    for (int step = 0; step < 6; ++step) {
      run.training().make_step();
      run.training().evaluate_if_due();
      run.training().end_step();
      for (const auto& [place, master] : values_of(run, "model"))
        reference::average_step(wanted.at(place), master, 0.25f, {});
      EXPECT_EQ(values_of(run, Average::slot), wanted);
    }
    EXPECT_NE(values_of(run, "model"), wanted) << name_of(config.sharding);
    run.training().finish();
  }
}

/// Losses and norms of the steps.
std::vector<std::pair<float, float>> course(Trial& run) {
  std::vector<std::pair<float, float>> values;
  for (const MetricsRow& row : run.train()) values.emplace_back(row.loss, row.grad_norm);
  return values;
}

TEST(Averages, ChangeNoBitOfTraining) {
  for (RunConfig config : kinds()) {
    SCOPED_TRACE(shown(config.precision.compute, config.sharding, config.model.moe.has_value()));
    Trial with(config);
    config.optimizer.ema = 0;
    config.eval.weights = EvaluatedWeights::trained;
    config.eval.every_steps = 0;
    Trial without(config);
    EXPECT_EQ(course(with), course(without));
    EXPECT_EQ(values_of(with, "model"), values_of(without, "model"));
  }
}

TEST(Averages, AreEvaluatedAsTheWeightsThatTheyAre) {
  for (RunConfig config : kinds()) {
    SCOPED_TRACE(shown(config.precision.compute, config.sharding, config.model.moe.has_value()));
    Trial run(config);
    const std::vector<MetricsRow> rows = run.train();
    ASSERT_TRUE(rows.back().eval_loss);
    const SharedFolder folder(run.control());
    run.save(folder.path());
    const fs::path saved = folder.path() / step_folder(6);
    config.optimizer.ema = 0;
    config.eval.weights = EvaluatedWeights::trained;
    for (const bool alone : {false, true}) {
      SCOPED_TRACE(shown(alone));
      Trial other(config, alone);
      const auto source = averages_of(std::make_unique<Checkpoint>(saved));
      other.training().initialise(
          [&](StateDict& weights) { load_weights(*source, weights, other.device(), other.control()); });
      EXPECT_EQ(static_cast<float>(other.training().evaluate()->front()), *rows.back().eval_loss);
    }
    Trial trained(config);
    trained.training().initialise([&](StateDict& weights) {
      load_weights(Checkpoint(saved), weights, trained.device(), trained.control());
    });
    EXPECT_NE(static_cast<float>(trained.training().evaluate()->front()), *rows.back().eval_loss);
    EXPECT_THROW(averages_of(std::make_unique<Checkpoint>([&] {
                   trained.save(folder.path());
                   return folder.path() / step_folder(0);
                 }())),
                 Error);
  }
}

TEST(Averages, GoOnFromAnyRanksAndLayoutsWithTheSameDigest) {
  for (RunConfig config : kinds()) {
    SCOPED_TRACE(shown(config.precision.compute, config.sharding, config.model.moe.has_value()));
    config.reduce.order = ReduceOrder::batch;  // one order of sums: ranks change no bit
    Trial whole(config);
    const SharedFolder folder(whole.control());
    whole.train(3);
    const std::string half = whole.save(folder.path());
    whole.train();
    const std::string end = whole.save(folder.path());
    for (const bool alone : {false, true}) {
      SCOPED_TRACE(shown(alone));
      Trial again(config, alone);
      again.load(folder.path() / step_folder(3));
      const TemporaryFolder own;
      const SharedFolder shared(whole.control());
      const fs::path place = alone ? own.path() : shared.path();
      EXPECT_EQ(again.save(place), half);
      again.train();
      EXPECT_EQ(again.save(place), end);
      RunConfig other = config;
      if (other.model.moe) other.model.moe->weights = ExpertWeights::discrete;
      other.sharding = config.sharding == Sharding::full ? Sharding::optimizer : Sharding::full;
      Trial elsewhere(other, alone);
      elsewhere.load(folder.path() / step_folder(3));
      const TemporaryFolder own_too;
      const SharedFolder shared_too(whole.control());
      EXPECT_EQ(elsewhere.save(alone ? own_too.path() : shared_too.path()), half);
    }
  }
}

TEST(Averages, NeedTheirMemoryToTheByte) {
  for (RunConfig config : kinds()) {
    SCOPED_TRACE(shown(config.precision.compute, config.sharding, config.model.moe.has_value()));
    const RunPlan with = resolve(config, mpi().size(), mpi().rank());
    Trial run(config);
    EXPECT_EQ(run.device().memory(), with.memory);
    config.optimizer.ema = 0;
    config.eval.weights = EvaluatedWeights::trained;
    const RunPlan without = resolve(config, mpi().size(), mpi().rank());
    const auto of = [](const RunPlan& plan, Category what) { return plan.memory[static_cast<std::size_t>(what)]; };
    EXPECT_EQ(of(with, Category::optimizer) - of(without, Category::optimizer), of(without, Category::masters));
  }
}

}  // namespace
}  // namespace tessera
