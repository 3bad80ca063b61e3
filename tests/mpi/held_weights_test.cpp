#include <gtest/gtest.h>

#include <cmath>

#include <nlohmann/json.hpp>

#include "app/training/tell/plan_text.hpp"
#include "tests/support/trial.hpp"

/// Training with weights held quantized: memory and bytes equal the plan's, and bf16 staged in the memory of gradients
/// is not overwritten, whatever overlaps.
namespace tessera {
namespace {

using namespace test;

RunConfig held(RecipeName recipe, const WeightRules& rules, std::optional<GatherCuts> cuts = {}) {
  RunConfig config = base(Compute::bf16);
  config.model.hidden = 64;
  config.model.seq_len = 32;
  config.model.norm = Norm::rms;
  config.model.position = Position::rotary;
  config.model.activation = Activation::swiglu;
  config.model.ffn = std::int64_t{96};
  config.model.moe = MoeConfig{};
  config.model.moe->experts = 4;
  config.model.moe->top_k = 2;
  config.reduce.bucket_mib = 0.05;
  config.precision.recipe = recipe;
  config.precision.primary_weights = rules.held;
  config.proof.wire = rules.wire;
  config.proof.staging = rules.staging;
  if (cuts) config.proof.cuts = *cuts;
  derive(config);
  return config;
}

std::vector<RunConfig> all_ways() {
  using enum PrimaryWeights;
  std::vector<RunConfig> all;
  for (const RecipeName recipe : {RecipeName::fp8_block, RecipeName::fp8_tensor, RecipeName::mxfp8,
                                  RecipeName::mxfp8_2d, RecipeName::mxfp6_e2m3_2d, RecipeName::mxfp4,
                                  RecipeName::mxfp4_2d, RecipeName::nvfp4, RecipeName::nvfp4_46}) {
    all.push_back(held(recipe, {}));
    all.push_back(held(recipe, {quantized, GatherWire::quantized, {}}));
    all.push_back(held(recipe, {quantized, GatherWire::quantized, {}}, GatherCuts::tile));
    all.push_back(held(recipe, {quantized, GatherWire::bf16, GatherStaging::alias_grads}));
    all.push_back(held(recipe, {quantized, GatherWire::bf16, GatherStaging::ring}, GatherCuts::tile));
  }
  return all;
}

std::string name_of(const RunConfig& config) {
  return std::string(name_of(config.precision.recipe)) + " held " +
         std::string(name_of(config.precision.primary_weights.get())) + " wire " +
         std::string(name_of(config.proof.wire)) + " staging " + std::string(name_of(config.proof.staging));
}

TEST(HeldWeights, TakeTheMemoryThatWasPlanned) {
  for (const RunConfig& config : all_ways()) {
    Trial run(config, 0);
    run.train();
    EXPECT_EQ(run.late_allocations(), 0);
    for (std::size_t c = 0; c < run.plan().memory.size(); ++c)
      EXPECT_EQ(run.device().memory()[c], run.plan().memory[c])
          << name_of(config) << ": " << name_of(static_cast<Category>(c));
  }
}

/// Codes take less memory than bf16, and bf16 staged in gradients takes none.
TEST(HeldWeights, TakeLessMemoryThanBf16) {
  const auto memory = [](const RunConfig& config, Category category) {
    return resolve(config, mpi().size(), mpi().rank()).memory[static_cast<std::size_t>(category)];
  };
  const WeightRules aliased{PrimaryWeights::quantized, GatherWire::bf16, GatherStaging::alias_grads};
  const WeightRules ring{PrimaryWeights::quantized, GatherWire::bf16, GatherStaging::ring};
  const std::int64_t staged = memory(held(RecipeName::mxfp8, aliased), Category::staging);
  EXPECT_EQ(staged, memory(held(RecipeName::mxfp8, {}), Category::staging));
  EXPECT_GT(memory(held(RecipeName::mxfp8, ring), Category::staging), staged);
}

TEST(HeldWeights, PlansSayWhatIsHeldAndWhatTravels) {
  const WeightRules aliased{PrimaryWeights::quantized, GatherWire::automatic, {}};
  for (const auto& [recipe, wire, staged] :
       {std::tuple{RecipeName::mxfp8, "bf16", "alias_grads"}, std::tuple{RecipeName::nvfp4, "quantized", "in place"}}) {
    const RunPlan plan = resolve(held(recipe, aliased), mpi().size(), mpi().rank());
    const auto json = nlohmann::json::parse(plan_json(plan));
    int coded = 0;
    for (std::size_t g = 0; g < json["groups"].size(); ++g)
      for (const auto& bucket : json["groups"][g]["buckets"]) {
        const bool codes = bucket["format"] == std::string(name_of(recipe));
        coded += codes;
        EXPECT_EQ(bucket["held"], bucket["format"]);
        EXPECT_EQ(bucket["wire"], codes ? wire : "bf16");
        EXPECT_EQ(bucket["staged"], codes ? staged : "in place");
        std::int64_t sum = 0;
        for (const std::int64_t slice : bucket["slices"]) sum += slice;
        EXPECT_EQ(std::ssize(bucket["slices"]), mpi().size());
        EXPECT_EQ(sum, bucket["elements"]);
      }
    EXPECT_GT(coded, 1);
    ASSERT_EQ(json["gathers"].size(), json["groups"].size());
    std::int64_t bytes = 0, gathered = 0;
    for (const auto& gather : json["gathers"]) {
      bytes += gather["bytes"].get<std::int64_t>();
      EXPECT_EQ(gather["pass"], "forward");
      EXPECT_FALSE(gather["why"].get<std::string>().empty());
    }
    for (const auto& collective : json["collectives"])
      if (collective["op"] == "all_gather" && collective["group"] >= 0)
        gathered += collective["bytes"].get<std::int64_t>();
    EXPECT_EQ(bytes, gathered);
    EXPECT_EQ(bytes > 0, mpi().size() > 1);
  }
}

/// Number of steps; TESSERA_SOAK_STEPS raises it.
std::int64_t soak_steps() {
  const char* steps = std::getenv("TESSERA_SOAK_STEPS");
  return steps ? std::atoll(steps) : 60;
}

TEST(HeldWeights, ShareTheGradientsMemoryUnderAllOverlapsAndDelays) {
  RunConfig config = held(RecipeName::mxfp8, {PrimaryWeights::quantized, GatherWire::bf16, GatherStaging::alias_grads});
  config.run.steps = soak_steps();
  config.optimizer.lr = 1e-3;
  const auto rows_of = [](const RunConfig& asked, int delay_us) {
    Trial run(asked, delay_us);
    return run.train();
  };
  config.proof.gather_overlap = config.proof.reduce_overlap = false;
  const std::vector<MetricsRow> calm = rows_of(config, 0);
  config.proof.gather_overlap = config.proof.reduce_overlap = true;
  const std::vector<MetricsRow> wild = rows_of(config, 300);
  ASSERT_EQ(std::ssize(calm), config.run.steps);
  ASSERT_EQ(calm.size(), wild.size());
  for (std::size_t i = 0; i < calm.size(); ++i) {
    ASSERT_TRUE(std::isfinite(calm[i].loss) && std::isfinite(calm[i].grad_norm)) << "step " << i + 1;
    ASSERT_EQ(calm[i].loss, wild[i].loss) << "step " << i + 1;
    ASSERT_EQ(calm[i].grad_norm, wild[i].grad_norm) << "step " << i + 1;
  }
}

}  // namespace
}  // namespace tessera
