// Inputs of experts, kept by forward as codes in memory for more rows than there are: those that backward would make.
#include <gtest/gtest.h>

#include "core/model/layers/experts.hpp"
#include "core/recipe/recipe.hpp"
#include "tests/support/compare.hpp"
#include "tests/support/tiny_gpt.hpp"

namespace tessera::test {
namespace {

constexpr std::int64_t in = 128, out = 128, most = 512;
/// Rows at which each expert's begin, and the last one's end; some have none.
const std::vector<std::int32_t> begins[] = {{0, 128, 128, 256}, {0, 0, 0, 128}};

TEST(SavedExperts, KeepTheCodesThatBackwardWouldMake) {
  for (const Recipe& recipe : recipes()) {
    if (!recipe.treatment.quantizes()) continue;
    Device device;
    ParamRegistry registry(TreatmentRules{recipe.treatment});
    MoeShape moe;
    moe.experts = 3;
    moe.top_k = 1;
    moe.weights = ExpertWeights::discrete;
    const auto layer = [&] {
      const ParamRegistry::InBlock block(registry, 0);
      return Experts(registry, "experts", "up", {moe, in, out, 0.02, Accumulation::fused, MatrixName::experts_up, {}});
    }();
    FlatParams params(device, registry, DType::bf16);
    Arena arena = device.arena(Category::activations, 8 << 20);
    const Tensor step = on_device(device, std::vector<std::uint64_t>{1});
    for (const std::vector<std::int32_t>& offsets : begins) {
      const std::int64_t rows = offsets.back();
      Routing routing;
      routing.offsets = on_device(device, offsets);
      routing.token_of_row = on_device(device, std::vector<std::int32_t>(static_cast<std::size_t>(rows), 0));
      const Tensor x = on_device(device, {rows, in}, uniform<bf16>(rows * in, 1)),
                   dy = on_device(device, {rows, out}, uniform<bf16>(rows * out, 2)),
                   y = poisoned(device, DType::bf16, dy.shape);
      const Call call{{device.compute(), params, &params, arena, nullptr, nullptr, {7, step}}, 1, {}};
      const auto gradient = [&](bool keeps) {
        const Arena::Frame frame(arena);
        const Experts::Saved placed = keeps ? layer.place(arena, most) : Experts::Saved();
        EXPECT_EQ(static_cast<bool>(placed), keeps) << recipe.name;
        const Experts::Saved saved = layer.first_rows(placed, rows);
        params.restart();
        layer.forward(call, y, x, routing, saved);
        const Factors::Gradient factors = layer.gradient(call, dy, {});
        const Tensor gone{nullptr, x.type, x.shape};
        layer.weight_gradient(call, factors, keeps ? gone : x, routing, saved);
        std::vector<std::vector<double>> all{download_real(device, y)};
        for (const ParamId id : params.ids()) all.push_back(params.gradient(id));
        return all;
      };
      const auto wanted = gradient(false), actual = gradient(true);
      ASSERT_EQ(wanted.size(), 4u);
      for (std::size_t i = 0; i < wanted.size(); ++i)
        EXPECT_TRUE(same_bits(actual[i], wanted[i])) << recipe.name << " " << i;
    }
  }
}

}  // namespace
}  // namespace tessera::test
