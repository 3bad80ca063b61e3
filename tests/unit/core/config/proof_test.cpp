#include <gtest/gtest.h>

#include "tests/support/shown.hpp"
#include "tests/support/sound_config.hpp"

namespace tessera {
namespace {

using namespace test;

TEST(ProofSection, CutsFollowFromWhatTravels) {
  const auto cuts = [](const RunConfig& config) { return derived(config).proof.cuts.get(); };
  using enum PrimaryWeights;
  EXPECT_EQ(cuts(sound()), GatherCuts::flat);
  EXPECT_EQ(cuts(holding(RecipeName::mxfp8, quantized)), GatherCuts::flat);  // auto: bf16 travels
  EXPECT_EQ(cuts(holding(RecipeName::mxfp8, quantized, GatherWire::quantized)), GatherCuts::tile);
  EXPECT_EQ(cuts(holding(RecipeName::mxfp8, quantized, GatherWire::bf16)), GatherCuts::flat);
  EXPECT_EQ(cuts(holding(RecipeName::nvfp4_46, quantized)), GatherCuts::tile);
  EXPECT_EQ(cuts(holding(RecipeName::nvfp4_46, quantized, GatherWire::bf16)), GatherCuts::flat);
  EXPECT_EQ(cuts(holding(RecipeName::nvfp4_46, bf16)), GatherCuts::flat);
  for (RecipeName recipe : {RecipeName::fp8_block, RecipeName::fp8_tensor, RecipeName::mxfp8_2d, RecipeName::nvfp4})
    EXPECT_EQ(cuts(holding(recipe, quantized, GatherWire::quantized)), GatherCuts::flat);
}

TEST(ProofSection, RowsMoveInPeersMemoryWhereItIsReached) {
  const auto settled = [](bool reached, void (*change)(ProofConfig&)) {
    ProofConfig proof;
    change(proof);
    proof.settle_expert_rows(reached);
    return proof.expert_rows;
  };
  const auto nothing = [](ProofConfig&) {};
  EXPECT_EQ(settled(true, nothing), ExpertRows::peers);
  EXPECT_EQ(settled(false, nothing), ExpertRows::exchange);
  EXPECT_EQ(settled(true, [](ProofConfig& c) { c.copy_engines = false; }), ExpertRows::exchange);
  EXPECT_EQ(settled(true, [](ProofConfig& c) { c.share_gpu = true; }), ExpertRows::exchange);
  EXPECT_EQ(settled(true, [](ProofConfig& c) { c.expert_rows = ExpertRows::exchange; }), ExpertRows::exchange);
  EXPECT_EQ(settled(false, [](ProofConfig& c) { c.expert_rows = ExpertRows::peers; }), ExpertRows::peers);
}

TEST(ProofSection, FullShardingCutsBetweenRowsOfBlocks) {
  using enum PrimaryWeights;
  const auto cuts = [](RecipeName recipe, PrimaryWeights held) {
    RunConfig config = holding(recipe, held);
    config.sharding = Sharding::full;
    return derived(config).proof.cuts.get();
  };
  EXPECT_EQ(cuts(RecipeName::bf16, bf16), GatherCuts::flat);
  for (const PrimaryWeights held : {bf16, quantized}) EXPECT_EQ(cuts(RecipeName::nvfp4, held), GatherCuts::tile);
}

TEST(ProofSection, WeightsTravelAsTheyAreHeld) {
  using enum PrimaryWeights;
  EXPECT_EQ(contradictions(holding(RecipeName::nvfp4, bf16, GatherWire::quantized)),
            List{"proof.wire: is quantized, and weights that are held in bf16 have no codes that could travel: use "
                 "wire auto, or primary_weights quantized"});
  RunConfig flat = holding(RecipeName::mxfp8, quantized, GatherWire::quantized);
  flat.proof.cuts = GatherCuts::flat;
  EXPECT_EQ(contradictions(flat), List{"proof.cuts: is flat, and codes of mxfp8 travel by whole rows of blocks: use "
                                       "cuts tile, or wire bf16"});
  flat.proof.cuts = GatherCuts::tile;
  EXPECT_EQ(contradictions(flat), List());
  RunConfig half = holding(RecipeName::mxfp4, quantized);  // auto: two copies of half a byte are less than bf16
  half.proof.cuts = GatherCuts::flat;
  EXPECT_EQ(contradictions(half), List{"proof.cuts: is flat, and codes of mxfp4 travel by whole rows of blocks: use "
                                       "cuts tile, or wire bf16"});
  RunConfig chosen = holding(RecipeName::nvfp4_46, quantized);  // the errors of whole blocks choose scales
  chosen.proof.cuts = GatherCuts::flat;
  EXPECT_EQ(contradictions(chosen), List{"proof.cuts: is flat, and codes of nvfp4_46 travel by whole rows of blocks: "
                                         "use cuts tile, or wire bf16"});
  chosen.proof.wire = GatherWire::bf16;
  EXPECT_EQ(contradictions(chosen), List());
}

TEST(ProofSection, StagingNeedsSomethingThatIsStaged) {
  using enum PrimaryWeights;
  const auto staged = [](RunConfig config, GatherStaging staging) {
    config.proof.staging = staging;
    return contradictions(config);
  };
  for (const GatherStaging staging : {GatherStaging::alias_grads, GatherStaging::ring}) {
    SCOPED_TRACE(shown(staging));
    const List nothing{"proof.staging: is " + std::string(name_of(staging)) +
                       ", and nothing is staged: only weights that are held quantized and travel as bf16 are; use "
                       "auto"};
    EXPECT_EQ(staged(sound(), staging), nothing);
    EXPECT_EQ(staged(holding(RecipeName::mxfp8, bf16), staging), nothing);
    EXPECT_EQ(staged(holding(RecipeName::nvfp4, quantized), staging), nothing);
    EXPECT_EQ(staged(holding(RecipeName::mxfp8, quantized, GatherWire::quantized), staging), nothing);
    EXPECT_EQ(staged(holding(RecipeName::mxfp8, quantized), staging), List());
    EXPECT_EQ(staged(holding(RecipeName::nvfp4, quantized, GatherWire::bf16), staging), List());
  }
}

TEST(ProofSection, FullShardingGathersWhatItKeeps) {
  using enum PrimaryWeights;
  RunConfig coded = holding(RecipeName::mxfp8, quantized, GatherWire::bf16);
  coded.sharding = Sharding::full;
  coded.proof.cuts = GatherCuts::flat;
  EXPECT_EQ(contradictions(coded),
            (List{"proof.wire: is bf16, and full sharding gathers what it keeps, which is codes: use wire auto, "
                  "primary_weights bf16, or sharding optimizer",
                  "proof.cuts: is flat, and full sharding cuts what a recipe quantizes between rows of blocks: use "
                  "cuts tile, or sharding optimizer"}));
}

TEST(ProofSection, AdvisesOfChoicesThatChangeNothing) {
  RunConfig config = sound();
  config.proof.cuts = GatherCuts::tile;
  config.proof.wire = GatherWire::bf16;
  EXPECT_EQ(advice(config), (List{"proof.wire: weights that are held in bf16 travel in it anyway",
                                  "proof.cuts: has an effect only on weights that the recipe quantizes"}));
}

}  // namespace
}  // namespace tessera
