#include "core/recipe/recipe.hpp"

#include <gtest/gtest.h>

namespace tessera {
namespace {

// A row that quantizes some of a product's factors would train in plain values, or fail in the first backward.
TEST(Recipe, RowsQuantizeAllFactorsOrNone) {
  PrecisionConfig quantized;
  quantized.recipe = RecipeName::mxfp8;
  const Recipe whole = recipe_of(quantized), plain = recipe_of({});
  ASSERT_TRUE(whole.weight.codes && whole.activation && whole.gradient);
  for (int choice = 0; choice < 8; ++choice) {
    Recipe row = plain;
    if (choice & 1) row.weight.codes = whole.weight.codes;
    if (choice & 2) row.activation = whole.activation;
    if (choice & 4) row.gradient = whole.gradient;
    EXPECT_EQ(is_whole(row), choice == 0 || choice == 7) << choice;
  }
  for (const Recipe& row : recipes()) EXPECT_TRUE(is_whole(row)) << row.name;
}

}  // namespace
}  // namespace tessera
