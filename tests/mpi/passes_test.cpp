// Every rank makes the same number of forward passes, whatever work it has.
#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>

#include "app/training/loop/generation.hpp"
#include "kernels/convert/convert.hpp"
#include "tests/support/self_control.hpp"
#include "tests/support/shown.hpp"
#include "tests/support/trial.hpp"

namespace tessera {
namespace {

using namespace test;

/// The evaluation loss of initial weights, computed by this rank alone.
double evaluated_alone(const RunConfig& config, const TokenStream& tokens, const Windows& windows) {
  const RunPlan plan = resolve(config, 1, 0);
  Device device;
  Mesh mesh = self_mesh();
  SelfControl control;
  std::vector<Record> records;
  Training training(device, plan, Batches(config, tokens, windows, plan.ranks.world), mesh, control, records);
  training.initialise([](StateDict&) {});
  return training.evaluate()->front();
}

// Fewer windows than ranks, a last micro-batch that is shorter: every rank makes as many passes, and the loss is that
// of one rank alone.
TEST(Passes, EvaluationIsTheSameBitsAtAnyNumberOfRanks) {
  for (RunConfig config : models())
    for (const std::int64_t micro : {1, 3})
      for (const std::int64_t held : {2, 7, 100}) {
        if (12 / mpi().size() % micro != 0) continue;
        config.batch.micro = micro;
        Trial run(config, 0, held);
        run.training().initialise([](StateDict&) {});
        const std::int64_t launched = run.device().compute().launches();
        const double loss = run.training().evaluate()->front();
        ASSERT_TRUE(std::isfinite(loss) && loss > 0);
        EXPECT_EQ(std::bit_cast<std::uint64_t>(loss),
                  std::bit_cast<std::uint64_t>(evaluated_alone(config, run.tokens(), run.windows())))
            << held << " windows, micro-batches of " << micro;
        // A forward is dozens of launches; with padding only, nothing but the loss's sum may be left out.
        const std::int64_t mine = run.device().compute().launches() - launched;
        EXPECT_LE(run.control().max(mine) - mine, 8) << "ranks make unequal numbers of passes";
      }
}

TEST(Passes, EveryRankGeneratesTheSameText) {
  RunConfig config = mixture(Compute::bf16);
  Trial run(config, 0);
  run.train();
  std::string text;
  generate([&](const std::vector<std::int32_t>& ids) { return run.training().next_logits(ids); },
           {.seed = run.plan().seed}, {'t', 'i', 'l', 'e'}, 30, [&](std::int32_t token) {
             text += static_cast<char>(token);
             return true;
           });
  EXPECT_EQ(text.size(), 30u);
  for (const std::string& other : run.control().gather(text)) EXPECT_EQ(other, text);
}

/// Sizes that every format takes.
RunConfig low_precision(RecipeName recipe) {
  RunConfig config = base(Compute::bf16);
  config.model.hidden = 64;
  config.model.seq_len = 32;
  config.precision.recipe = recipe;
  derive(config);
  return config;
}

// The same batch and the same masters: two steps differ only by the draws of stochastic rounding.
TEST(Passes, EveryStepDrawsAnew) {
  const auto norms = [](RecipeName recipe) {
    Trial run(low_precision(recipe), 0);
    run.training().initialise([](StateDict&) {});
    Engine& engine = run.training().engine();
    Batches batches(run.plan().config, run.tokens(), run.windows(), run.plan().ranks.world);
    HostSequences batch = batches.training(0, 0);
    std::vector<float> all;
    for (const std::uint64_t step : {1u, 2u, 1u}) {
      SCOPED_TRACE(shown(step));
      batch.step = step;
      all.push_back(engine.report(engine.step(batch, {})).clip.norm);
      EXPECT_TRUE(std::isfinite(all.back()) && all.back() > 0);
    }
    return all;
  };
  const std::vector<float> drawn = norms(RecipeName::nvfp4), nearest = norms(RecipeName::mxfp8);
  EXPECT_NE(drawn[0], drawn[1]);
  EXPECT_EQ(drawn[0], drawn[2]);
  EXPECT_EQ(nearest[0], nearest[1]);
}

// Formats saturate: without the check an infinite activation would become a finite number in the next product.
TEST(Passes, AnEvaluationOfWhatIsNotFiniteHasNoLoss) {
  for (const RecipeName recipe : {RecipeName::fp8_block, RecipeName::nvfp4})
    for (const bool poisoned : {false, true}) {
      Trial run(low_precision(recipe), 0);
      run.training().initialise([&](StateDict& state) {
        for (const StateTensor& tensor : state.tensors)
          if (poisoned && tensor.name == "layers.0.mlp.up.bias")
            for (const StateRange& range : tensor.ranges)
              fill(run.device().compute(), range.values, std::numeric_limits<float>::max());  // in bf16 infinity
      });
      EXPECT_EQ(std::isnan(run.training().evaluate()->front()), poisoned) << name_of(recipe);
    }
}

}  // namespace
}  // namespace tessera
