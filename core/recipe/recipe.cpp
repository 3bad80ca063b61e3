#include "core/recipe/recipe.hpp"

#include "kernels/base/error.hpp"
#include "kernels/formats/registry.hpp"

namespace tessera {
namespace {
using formats::id_of;

/// All slots filled. NVFP4 rounds gradients at random where it may, and rotates what weight gradients are made of.
template <formats::Format W, formats::Format X, formats::Format G = X>
constexpr Recipe quantized() {
  return {W::name,
          {.plain = DType::bf16,
           .weight = {id_of<W>, id_of<W>},
           .activation = {id_of<X>, id_of<X>},
           .gradient = {id_of<G>, id_of<G>},
           .draws = formats::may_draw<G>,
           .rotates = X::hadamard && G::hadamard}};
}

constexpr Recipe table[] = {
    {"bf16", {.plain = DType::bf16}},
    {"fp32", {.plain = DType::f32}},
    quantized<formats::Fp8Block, formats::Fp8BlockOneD>(),
    quantized<formats::Fp8Tensor, formats::Fp8Tensor, formats::Fp8TensorE5m2>(),
    quantized<formats::Mxfp8, formats::Mxfp8>(),
    quantized<formats::Mxfp8Tiles, formats::Mxfp8>(),
    quantized<formats::Mxfp6E3m2, formats::Mxfp6E3m2>(),
    quantized<formats::Mxfp6E3m2Tiles, formats::Mxfp6E3m2>(),
    quantized<formats::Mxfp6E2m3, formats::Mxfp6E2m3>(),
    quantized<formats::Mxfp6E2m3Tiles, formats::Mxfp6E2m3>(),
    quantized<formats::Mxfp4, formats::Mxfp4>(),
    quantized<formats::Mxfp4Tiles, formats::Mxfp4>(),
    quantized<formats::Nvfp4, formats::Nvfp4OneD>(),
    quantized<formats::Nvfp4FourOverSix, formats::Nvfp4FourOverSixOneD>(),
};
}  // namespace

std::span<const Recipe> recipes() { return table; }

const Recipe& recipe_named(std::string_view name) {
  for (const Recipe& recipe : table)
    if (recipe.name == name) return recipe;
  refuse("recipe_named", "the table has no such recipe");
}

}  // namespace tessera
