#include "core/recipe/recipe.hpp"

namespace tessera {
namespace {
constexpr Recipe table[] = {
    {"bf16", {"bf16", DType::bf16, 2, 32}},
    {"fp32", {"fp32", DType::f32, 4, 32}},
};
}  // namespace

std::span<const Recipe> recipes() { return table; }

const Recipe& recipe_of(DType compute) {
  for (const Recipe& recipe : table)
    if (recipe.weight.element == compute) return recipe;
  refuse("recipe_of", "weights are kept in bf16 or fp32");
}

}  // namespace tessera
