#include "core/recipe/recipe.hpp"

#include <algorithm>

#include "kernels/formats/registry.hpp"

namespace tessera {
namespace {
using formats::id_of;

template <formats::Format W, formats::Format X, formats::Format G = X>
constexpr Recipe quantized(std::int64_t matrix, std::int64_t rows, std::int64_t expert_rows) {
  return {W::name, {DType::bf16, id_of<W>}, id_of<X>, id_of<G>, matrix, rows, expert_rows};
}

constexpr Recipe table[] = {
    {"bf16", {DType::bf16, {}}, {}, {}},
    {"fp32", {DType::f32, {}}, {}, {}},
    quantized<formats::Fp8Block, formats::Fp8BlockOneD>(16, 16, 128),
    quantized<formats::Fp8Tensor, formats::Fp8Tensor, formats::Fp8TensorE5m2>(16, 16, 16),
    quantized<formats::Mxfp8, formats::Mxfp8>(32, 32, 32),
    quantized<formats::Mxfp8Tiles, formats::Mxfp8>(32, 32, 32),
    quantized<formats::Nvfp4, formats::Nvfp4OneD>(16, 16, 16),
};
static_assert(std::ranges::all_of(table, is_whole),
              "A recipe names the formats of weights, activations and gradients, or none of them: products of which "
              "one side alone is quantized do not exist, and such a row would train in bf16 without a word.");
}  // namespace

std::string_view name_of(const WeightFormat& format) {
  if (format.codes) return traits_of(*format.codes).name;
  return format.plain == DType::f32 ? "fp32" : name_of(format.plain);
}

std::int64_t data_bytes(const WeightFormat& format, ElementIndex elements) {
  return format.codes ? formats::data_bytes(*format.codes, elements.value) : elements.value * size_of(format.plain);
}

std::span<const Recipe> recipes() { return table; }

const Recipe& recipe_of(const PrecisionConfig& precision) {
  const bool fp32 = precision.recipe == RecipeName::bf16 && precision.compute == Compute::fp32;
  const std::string_view name = fp32 ? "fp32" : name_of(precision.recipe);
  for (const Recipe& recipe : table)
    if (recipe.name == name) return recipe;
  refuse("recipe_of", "the table has no such recipe");
}

}  // namespace tessera
