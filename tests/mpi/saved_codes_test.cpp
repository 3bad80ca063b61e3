// Inputs of products that forward keeps as codes, and codes that backward makes again: the same bits, in the planned
// memory.
#include <gtest/gtest.h>

#include "tests/support/trial.hpp"

namespace tessera {
namespace {

using test::mpi;
using test::Trial;
using Modules = std::vector<RecomputeModule>;

/// One of each kind of copies: multiplied by a GPU, of their own, shared or turned by both sides.
constexpr RecipeName coded[] = {RecipeName::fp8_block, RecipeName::mxfp8, RecipeName::nvfp4};

/// A model in `recipe`: dense with gelu or swiglu, or experts and one that every token visits.
RunConfig model(RecipeName recipe, int kind) {
  RunConfig config = test::base(Compute::bf16);
  config.run.steps = 2;
  config.model.hidden = 64;
  config.model.seq_len = 32;
  config.model.ffn = std::int64_t{kind == 0 ? 96 : 128};
  config.model.activation = kind == 0 ? Activation::gelu : Activation::swiglu;
  if (kind == 2) {
    MoeConfig& moe = config.model.moe.emplace();
    moe.experts = mpi().size() == 3 ? 3 : 4;
    moe.top_k = 2;
    moe.ffn = std::int64_t{64};
    moe.shared_ffn = 64;
  }
  config.precision.recipe = recipe;
  return config;
}

struct Outcome {
  std::vector<MetricsRow> rows;
  std::int64_t activations;  ///< bytes
};

Outcome outcome_of(RunConfig config, RecomputeMode mode, const Modules& modules) {
  config.recompute.mode = mode;
  if (!modules.empty()) config.recompute.modules = modules;
  derive(config);
  Trial run(config, 0, 4);
  Outcome outcome{run.train(), run.plan().memory[static_cast<std::size_t>(Category::activations)]};
  EXPECT_EQ(run.late_allocations(), 0);
  for (std::size_t c = 0; c < run.plan().memory.size(); ++c)
    EXPECT_EQ(run.device().memory()[c], run.plan().memory[c]) << name_of(static_cast<Category>(c));
  return outcome;
}

void expect_same(const Outcome& a, const Outcome& b, const std::string& what) {
  ASSERT_EQ(a.rows.size(), 2u);
  ASSERT_EQ(a.rows.size(), b.rows.size()) << what;
  for (std::size_t i = 0; i < a.rows.size(); ++i) {
    ASSERT_EQ(a.rows[i].loss, b.rows[i].loss) << what << ", step " << i + 1;
    ASSERT_EQ(a.rows[i].grad_norm, b.rows[i].grad_norm) << what << ", step " << i + 1;
  }
}

TEST(SavedCodes, MadeAgainAreThoseThatWereKept) {
  using enum RecomputeMode;
  using enum RecomputeModule;
  int turn = mpi().size();
  for (const RecipeName recipe : coded)
    for (const int kind : {0, 1, 2}) {
      RunConfig config = model(recipe, kind);
      config.sharding = turn++ % 2 == 0 ? Sharding::full : Sharding::optimizer;
      if (kind == 2 && mpi().size() % 2 == 0) config.parallel.expert = 2;
      const std::string what = std::string(name_of(recipe)) + ", model " + std::to_string(kind);
      const Outcome kept = outcome_of(config, none, {}), again = outcome_of(config, selective, {codes});
      expect_same(kept, again, what);
      expect_same(kept, outcome_of(config, selective, {attention, codes}), what + ", attention too");
      expect_same(kept, outcome_of(config, selective, {activation}), what + ", activations alone");
      expect_same(kept, outcome_of(config, full, {}), what + ", whole blocks");
      const bool computes = recipe == RecipeName::fp8_block && kind > 0;  // by the quantizer: nothing is kept
      EXPECT_LE(again.activations, kept.activations) << what;
      EXPECT_TRUE(again.activations < kept.activations || kind == 0 || computes) << what;
    }
}

// Of values as of codes: swiglus, and experts, whose activation no product computes.
TEST(SavedCodes, ActivationsMadeAgainAreNotKept) {
  using enum RecomputeMode;
  using enum RecomputeModule;
  for (const int kind : {1, 2})
    for (const Sharding sharding : {Sharding::optimizer, Sharding::full}) {
      RunConfig config = model(RecipeName::bf16, kind);
      config.sharding = sharding;
      if (kind == 2 && mpi().size() % 2 == 0) config.parallel.expert = 2;
      const std::string what = "model " + std::to_string(kind);
      const Outcome kept = outcome_of(config, none, {}), again = outcome_of(config, selective, {activation});
      expect_same(kept, again, what);
      expect_same(kept, outcome_of(config, selective, {attention, norm, activation}), what + ", others too");
      EXPECT_LT(again.activations, kept.activations) << what;
    }
}

// Codes take the place of bf16 values: of the inputs of qkv, up and down. Experts as small as these have more padding.
TEST(SavedCodes, TakeLessThanValues) {
  for (const int kind : {0, 1}) {
    const std::int64_t values = outcome_of(model(RecipeName::bf16, kind), RecomputeMode::none, {}).activations;
    for (const RecipeName recipe : coded) {
      const std::int64_t kept = outcome_of(model(recipe, kind), RecomputeMode::none, {}).activations;
      EXPECT_LT(kept, values) << name_of(recipe) << ", model " << kind;
    }
  }
}

}  // namespace
}  // namespace tessera
