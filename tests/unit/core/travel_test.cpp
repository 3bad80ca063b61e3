#include "core/config/travel.hpp"

#include <gtest/gtest.h>

#include "core/config/config.hpp"
#include "core/config/treatments.hpp"
#include "tests/support/shown.hpp"

/// What travels of a weight: decided once, by the bytes that an all-gather of codes would move.
namespace tessera {
namespace {

constexpr PrimaryWeights helds[] = {PrimaryWeights::bf16, PrimaryWeights::quantized};
constexpr GatherWire wires[] = {GatherWire::automatic, GatherWire::bf16, GatherWire::quantized};
constexpr Sharding shardings[] = {Sharding::optimizer, Sharding::full};
constexpr WeightRules quantized{.held = PrimaryWeights::quantized};

/// Bits of the codes and scales of one block, as often as copies travel, against the block's plain values.
bool codes_are_fewer(FormatId id, DType plain) {
  const FormatTraits format = traits_of(id);
  const std::int64_t elements = format.block.rows * format.block.columns;
  const int copies = format.columnwise == formats::Columnwise::requantized ? 2 : 1;
  const auto scale = format.scaled ? 8 * static_cast<std::int64_t>(size_of(format.scale_type)) : 0;
  return copies * (elements * format.bits + scale) < elements * 8 * static_cast<std::int64_t>(size_of(plain));
}

TEST(Travel, AutoTakesTheFewerBytesOfEveryFormat) {
  for (int i = 0; i < formats::Registry::size; ++i)
    for (const DType plain : {DType::bf16, DType::f32}) {
      const auto id = static_cast<FormatId>(i);
      EXPECT_EQ(travel_of(id, plain, quantized), codes_are_fewer(id, plain) ? Travel::codes : Travel::bf16)
          << traits_of(id).name << " " << name_of(plain);
    }
}

// Two copies of 4 bits and their scales are 9 bits an element, fewer than bf16 has; two of 8 bits are more.
TEST(Travel, CountsBothCopiesAndScales) {
  EXPECT_EQ(travel_of(find_format("nvfp4_1d"), DType::bf16, quantized), Travel::codes);
  EXPECT_EQ(travel_of(find_format("mxfp8"), DType::bf16, quantized), Travel::bf16);
  EXPECT_EQ(travel_of(find_format("fp8_block"), DType::bf16, quantized), Travel::codes);
}

// Errors of whole blocks choose the scales of nvfp4_46, of which one copy travels.
TEST(Travel, BlocksHaveOneOwnerWhereBothCopiesTravelOrErrorsDecide) {
  for (const char* name : {"mxfp8", "mxfp4", "nvfp4_46"})
    EXPECT_TRUE(blocks_have_one_owner(*find_format(name))) << name;
  for (const char* name : {"fp8_block", "fp8_tensor", "mxfp8_2d", "mxfp4_2d", "nvfp4"})
    EXPECT_FALSE(blocks_have_one_owner(*find_format(name))) << name;
  EXPECT_FALSE(copies_travel_apart(*find_format("nvfp4_46")));
}

TEST(Travel, ShardingAndWireDecideBeforeBytesDo) {
  for (int i = 0; i < formats::Registry::size; ++i) {
    const auto id = static_cast<FormatId>(i);
    for (const GatherWire wire : wires) {
      SCOPED_TRACE(test::shown(wire));
      for (const Sharding sharding : shardings) {
        SCOPED_TRACE(test::shown(sharding));
        EXPECT_EQ(travel_of(id, DType::bf16, {PrimaryWeights::bf16, wire, {}, sharding}), Travel::plain);
        EXPECT_EQ(travel_of({}, DType::bf16, {PrimaryWeights::quantized, wire, {}, sharding}), Travel::plain);
      }
      EXPECT_EQ(travel_of(id, DType::bf16, {PrimaryWeights::quantized, wire, {}, Sharding::full}), Travel::codes);
    }
    EXPECT_EQ(travel_of(id, DType::bf16, {PrimaryWeights::quantized, GatherWire::bf16}), Travel::bf16);
    EXPECT_EQ(travel_of(id, DType::bf16, {PrimaryWeights::quantized, GatherWire::quantized}), Travel::codes);
  }
}

// What a deck's checks and defaults assume is what its weights do.
TEST(Travel, DecksAndWeightsAgree) {
  for (const RecipeName recipe :
       {RecipeName::bf16, RecipeName::fp8_block, RecipeName::fp8_tensor, RecipeName::mxfp8,
        RecipeName::mxfp8_2d, RecipeName::mxfp6_e3m2, RecipeName::mxfp4, RecipeName::mxfp4_2d, RecipeName::nvfp4,
        RecipeName::nvfp4_46})
    for (const PrimaryWeights held : helds)
      for (const GatherWire wire : wires)
        for (const Sharding sharding : shardings) {
          RunConfig config;
          config.precision.recipe = recipe;
          config.precision.primary_weights = held;
          config.proof.wire = wire;
          config.sharding = sharding;
          config.model.layers = 1;
          const WeightFormat format = treatment_rules(config).standard.held();
          const Travel travel = travel_of(format.codes, format.plain, {held, wire, {}, sharding});
          const bool both = travel == Travel::codes && copies_travel_apart(*format.codes);
          EXPECT_EQ(stages_values(config), travel == Travel::bf16) << name_of(recipe);
          EXPECT_EQ(ships_both_copies(config), both) << name_of(recipe);
          config.proof.derive(config);
          const bool whole = travel == Travel::codes && blocks_have_one_owner(*format.codes),
                     full = sharding == Sharding::full && format.codes;
          EXPECT_EQ(config.proof.cuts.get(), whole || full ? GatherCuts::tile : GatherCuts::flat) << name_of(recipe);
        }
}

}  // namespace
}  // namespace tessera
