// Each slot of a treatment quantizes one factor of one product: it changes that product's bits, and no other's.
#include <gtest/gtest.h>

#include <random>

#include "core/model/layers/linear.hpp"
#include "core/recipe/recipe.hpp"
#include "kernels/formats/registry.hpp"
#include "tests/support/compare.hpp"
#include "tests/support/flat_params.hpp"

namespace tessera::test {
namespace {

constexpr std::int64_t tokens = 160, in = 96, out = 160;
constexpr const char* products[] = {"forward", "dgrad", "wgrad"};

/// What the three products of a linear layer give: y, dx, dW.
std::array<std::vector<double>, 3> products_of(const Treatment& treatment, std::uint64_t step_number = 1) {
  Device device;
  ParamRegistry registry(TreatmentRules{treatment});
  const auto layer = [&] {
    const ParamRegistry::InBlock block(registry, 0);
    return Linear(registry, "linear", {in, out, 0.02, false, Accumulation::fused, MatrixName::other, {}});
  }();
  FlatParams params(device, registry, DType::bf16);
  const ParamId weight = params.ids().front();
  params.set(weight, uniform<double>(in * out, 10, -0.5, 0.5));
  Arena arena = device.arena(Category::activations, 4 << 20);
  const Tensor x = on_device(device, {tokens, in}, uniform<bf16>(tokens * in, 1)),
               dy = on_device(device, {tokens, out}, uniform<bf16>(tokens * out, 2)),
               step = on_device(device, std::vector<std::uint64_t>{step_number}),
               y = poisoned(device, DType::bf16, dy.shape), dx = poisoned(device, DType::bf16, x.shape);
  const Call call{{device.compute(), params, &params, arena, nullptr, nullptr, {7, step}}, 1, {}};
  const Arena::Frame frame(arena);
  const Linear::Saved saved = layer.place(arena, tokens, Values::passing);
  layer.forward(call, y, x, saved);
  layer.backward(call, dx, dy, x, saved);
  return {download_real(device, y), download_real(device, dx), params.gradient(weight)};
}

/// The slots of a treatment, in the order of the products that take them: two each.
std::array<Treatment::Format*, 6> slots_of(Treatment& t) {
  return {&t.weight.forward, &t.activation.forward, &t.weight.dgrad, &t.gradient.dgrad, &t.activation.wgrad,
          &t.gradient.wgrad};
}
bool is_of_weight(int slot) { return slot == 0 || slot == 2; }

/// Formats that weights may have; those of activations and gradients.
std::vector<FormatId> formats_for(int slot) {
  using formats::id_of;
  if (is_of_weight(slot))
    return {id_of<formats::Fp8Block>, id_of<formats::Fp8Tensor>, id_of<formats::Mxfp8>, id_of<formats::Mxfp8Tiles>,
            id_of<formats::Nvfp4>, id_of<formats::Nvfp4FourOverSix>};
  return {id_of<formats::Fp8BlockOneD>, id_of<formats::Fp8Tensor>, id_of<formats::Fp8TensorE5m2>,
          id_of<formats::Mxfp8>, id_of<formats::Nvfp4OneD>, id_of<formats::Nvfp4FourOverSixOneD>,
          id_of<formats::Nvfp4Row>};
}

TEST(Slots, EachChangesItsProductAlone) {
  const auto plain = products_of({});
  for (int slot = 0; slot < 6; ++slot)
    for (const FormatId format : formats_for(slot)) {
      Treatment treatment;
      *slots_of(treatment)[static_cast<std::size_t>(slot)] = format;
      const auto quantized = products_of(treatment);
      for (int p = 0; p < 3; ++p)
        EXPECT_EQ(same_bits(quantized[static_cast<std::size_t>(p)], plain[static_cast<std::size_t>(p)]), p != slot / 2)
            << "slot " << slot << " in " << traits_of(format).name << ", " << products[p];
    }
}

// Whatever the other slots hold, a product's bits are those of its own two.
TEST(Slots, AProductsBitsDependOnItsOwnAlone) {
  std::mt19937 random(3);
  for (int drawn = 0; drawn < 60; ++drawn) {
    Treatment treatment;
    for (int slot = 0; slot < 6; ++slot) {
      const std::vector<FormatId> formats = formats_for(slot);
      const std::size_t choice = random() % (formats.size() + 2);
      if (choice < formats.size()) *slots_of(treatment)[static_cast<std::size_t>(slot)] = formats[choice];
    }
    const auto may_rotate = [](const Treatment::Format& format) { return format && traits_of(*format).hadamard; };
    treatment.draws = random() % 2 == 0;
    treatment.rotates =
        may_rotate(treatment.activation.wgrad) && may_rotate(treatment.gradient.wgrad) && random() % 2 == 0;
    const auto all = products_of(treatment);
    for (int p = 0; p < 3; ++p) {
      Treatment own = treatment;
      for (int slot = 0; slot < 6; ++slot)
        if (slot / 2 != p) slots_of(own)[static_cast<std::size_t>(slot)]->reset();
      EXPECT_TRUE(same_bits(products_of(own)[static_cast<std::size_t>(p)], all[static_cast<std::size_t>(p)]))
          << drawn << ", " << products[p] << ": " << text_of(treatment);
    }
  }
}

// Rotation and random rounding are each on their own.
TEST(Slots, RotationAndRandomRoundingAreApart) {
  Treatment treatment = recipe_named("nvfp4").treatment;
  std::vector<double> nearest[2];
  for (const bool rotates : {false, true}) {
    treatment.rotates = rotates;
    treatment.draws = false;
    nearest[rotates] = products_of(treatment, 1)[2];
    EXPECT_TRUE(same_bits(products_of(treatment, 2)[2], nearest[rotates])) << "nothing is drawn";
    treatment.draws = true;
    const std::vector<double> drawn = products_of(treatment, 1)[2];
    EXPECT_FALSE(same_bits(drawn, nearest[rotates]));
    EXPECT_FALSE(same_bits(products_of(treatment, 2)[2], drawn)) << "a step's draws are its own";
  }
  EXPECT_FALSE(same_bits(nearest[0], nearest[1]));
}

}  // namespace
}  // namespace tessera::test
