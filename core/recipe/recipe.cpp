#include "core/recipe/recipe.hpp"

#include "kernels/formats/registry.hpp"

namespace tessera {
namespace {
constexpr Recipe table[] = {
    {"bf16", {DType::bf16, {}}, {}, {}},
    {"fp32", {DType::f32, {}}, {}, {}},
};
}  // namespace

std::string_view name_of(const WeightFormat& format) {
  if (format.codes) return traits_of(*format.codes).name;
  return format.plain == DType::f32 ? "fp32" : name_of(format.plain);
}

std::int64_t data_bytes(const WeightFormat& format, ElementIndex elements) {
  return format.codes ? formats::data_bytes(*format.codes, elements.value) : elements.value * size_of(format.plain);
}

std::span<const Recipe> recipes() { return table; }

const Recipe& recipe_of(DType compute) {
  for (const Recipe& recipe : table)
    if (recipe.weight == WeightFormat{compute, {}}) return recipe;
  refuse("recipe_of", "weights are kept in bf16 or fp32");
}

}  // namespace tessera
