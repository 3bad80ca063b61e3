#include "core/recipe/recipe.hpp"

#include <gtest/gtest.h>

#include "kernels/formats/registry.hpp"

namespace tessera {
namespace {

// Both products of a weight read one copy's codes in the table's rows, so that weights can be stored as codes.
TEST(Recipe, RowsStoreWeightsAsTheyAreMultiplied) {
  for (const Recipe& row : recipes()) {
    const Treatment& t = row.treatment;
    EXPECT_EQ(t.held().codes, t.weight.forward) << row.name;
    EXPECT_EQ(t.weight.forward, t.weight.dgrad) << row.name;
    EXPECT_EQ(t.quantizes(), t.held().codes.has_value()) << row.name;
    EXPECT_EQ(&recipe_named(row.name), &row);
  }
}

// Blocks of a copy run along what its product sums over; each slot asks for what its own copy needs.
TEST(Treatment, SizesFollowFromTheCopiesThatAreMade) {
  const FormatId mx = formats::id_of<formats::Mxfp8>, fp8 = formats::id_of<formats::Fp8BlockOneD>,
                 fp4 = formats::id_of<formats::Nvfp4OneD>, tiles = formats::id_of<formats::Nvfp4>;
  const auto of = [](const Treatment& t) {
    const Multiples m = multiples_of(t);
    return std::array{m.out, m.in, m.rows, m.expert_rows};
  };
  using Sizes = std::array<std::int64_t, 4>;
  EXPECT_EQ(of({}), (Sizes{1, 1, 1, 1}));
  EXPECT_EQ(of({.weight = {mx, {}}}), (Sizes{1, 32, 1, 1}));
  EXPECT_EQ(of({.weight = {{}, mx}}), (Sizes{32, 1, 1, 1}));
  EXPECT_EQ(of({.weight = {tiles, {}}}), (Sizes{16, 16, 1, 1}));
  EXPECT_EQ(of({.activation = {mx, {}}}), (Sizes{1, 32, 1, 32}));
  EXPECT_EQ(of({.activation = {{}, mx}}), (Sizes{1, 1, 32, 32}));
  EXPECT_EQ(of({.gradient = {fp4, {}}}), (Sizes{16, 1, 1, 16}));
  EXPECT_EQ(of({.gradient = {{}, fp8}}), (Sizes{1, 1, 16, 128}));
  for (const Recipe& row : recipes())
    if (row.treatment.quantizes()) {
      const Sizes sizes = of(row.treatment);
      const std::int64_t block = row.name.starts_with("mxfp") ? 32 : 16;
      EXPECT_EQ(sizes, (Sizes{block, block, block, row.name == "fp8_block" ? 128 : block})) << row.name;
    }
}

}  // namespace
}  // namespace tessera
