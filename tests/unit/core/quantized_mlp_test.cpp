// A feed-forward layer in low precision: that of bf16, but for the error of its codes.
#include <gtest/gtest.h>

#include <cmath>

#include "core/model/layers/branch.hpp"
#include "core/model/layers/mlp.hpp"
#include "core/model/layers/recompute.hpp"
#include "core/recipe/recipe.hpp"
#include "kernels/gemm/route.hpp"
#include "tests/support/compare.hpp"
#include "tests/support/tiny_gpt.hpp"
#include "tests/support/tolerances.hpp"

namespace tessera::test {
namespace {

constexpr std::int64_t tokens = 160;
/// Of the inner layer: quantizers compute a swiglu of the second.
constexpr std::int64_t widths[] = {288, 256};

struct Results {
  std::vector<double> y, dx;
  std::vector<std::vector<double>> gradients;
  std::int64_t kept;  ///< bytes that backward needs of forward
};

Results computed(const Recipe& recipe, Activation activation, bool bias, Accumulation accumulation,
                 Keep keep = Keep::all, std::int64_t ffn = 288) {
  GptShape shape = tiny_shape();
  shape.layers = 1;
  shape.hidden = 96;
  shape.ffn = ffn;
  shape.compute = DType::bf16;
  shape.activation = activation;
  shape.bias = bias;
  shape.accumulation = accumulation;
  Device device;
  ParamRegistry registry(TreatmentRules{recipe.treatment});
  const auto layer = [&] {
    const ParamRegistry::InBlock block(registry, 0);
    return Recompute<Mlp>(keep, Mlp(registry, "mlp", shape));
  }();
  FlatParams params(device, registry, shape.compute);
  for (const ParamId id : params.ids())
    params.set(id,
               uniform<double>(registry[id].member_elements(), 10 + static_cast<std::uint64_t>(id.value), -0.5, 0.5));
  Arena arena = device.arena(Category::activations, 16 << 20);
  const Tensor sums = device.allocate(Category::batch, DType::u64, {sizeof(StepSums) / 8});
  const StepSums zero;
  device.upload(device.compute(), sums, &zero);
  const Tensor x = on_device(device, {tokens, shape.hidden}, uniform<bf16>(tokens * shape.hidden, 1)),
               dy = on_device(device, x.shape, uniform<bf16>(x.elements(), 2)),
               y = poisoned(device, DType::bf16, x.shape), dx = poisoned(device, DType::bf16, x.shape),
               step = on_device(device, std::vector<std::uint64_t>{1});
  const Call call{
      {device.compute(), params, &params, arena, static_cast<StepSums*>(sums.data), nullptr, {7, step}}, 1, {}};
  const Arena::Frame frame(arena);
  const auto saved = layer.place(arena, tokens);
  {
    const Arena::Frame of_forward(arena);
    layer.forward(call, x, saved, y);
  }
  const Mlp::Saved again = layer.again(call, x, saved);
  layer.layer().backward(call, dx, dy, x, again);
  Results all{download_real(device, y), download_real(device, dx), {}, 0};
  for (const ParamId id : params.ids()) {
    EXPECT_EQ(params.writes(id), 1) << registry[id].name;
    all.gradients.push_back(params.gradient(id));
  }
  StepSums found;
  device.download(device.compute(), &found, sums);
  EXPECT_EQ(found.not_finite, 0u);
  for (const Tensor& t : {again.pre, again.activated}) all.kept += t ? t.bytes() : 0;
  return all;
}

TEST(QuantizedMlp, RecomputedHasTheSameBits) {
  for (const auto& [activation, name] : Names<Activation>::table)
    for (const Recipe& recipe : recipes()) {
      if (recipe.treatment.plain != DType::bf16) continue;
      for (const std::int64_t ffn : widths) {
        const auto of = [&](Keep keep) { return computed(recipe, activation, true, Accumulation::fused, keep, ffn); };
        const Results kept = of(Keep::all), again = of(Keep::input);
        EXPECT_TRUE(same_bits(again.y, kept.y) && same_bits(again.dx, kept.dx)) << recipe.name << " " << name;
        for (std::size_t i = 0; i < kept.gradients.size(); ++i)
          EXPECT_TRUE(same_bits(again.gradients[i], kept.gradients[i])) << recipe.name << " " << name << " " << i;
      }
    }
}

/// |actual - wanted| / |wanted|, in the Euclidean norm; NaN where there is nothing to compare.
double distance(const std::vector<double>& actual, const std::vector<double>& wanted) {
  if (actual.size() != wanted.size()) return std::nan("");
  double apart = 0, all = 0;
  for (std::size_t i = 0; i < wanted.size(); ++i) {
    apart += (actual[i] - wanted[i]) * (actual[i] - wanted[i]);
    all += wanted[i] * wanted[i];
  }
  return std::sqrt(apart / all);
}

double tolerance_of(std::string_view recipe) {
  if (recipe.starts_with("nvfp4") || recipe.starts_with("mxfp4")) return tolerances::fp4_layer;
  if (recipe.starts_with("mxfp6_e3m2")) return tolerances::e3m2_layer;
  return recipe == "fp8_tensor" ? tolerances::e5m2_layer : tolerances::fp8_layer;
}

TEST(QuantizedMlp, IsThatOfBf16ButForItsCodes) {
  for (const auto& [activation, name] : Names<Activation>::table)
    for (const auto& [bias, ffn] :
         {std::pair{false, widths[0]}, {true, widths[0]}, {false, widths[1]}, {true, widths[1]}})
      for (const Accumulation accumulation : {Accumulation::fused, Accumulation::unfused}) {
        const Results wanted = computed(recipe_named("bf16"), activation, bias, accumulation, Keep::all, ffn);
        for (const Recipe& recipe : recipes()) {
          if (!recipe.treatment.quantizes()) continue;
          const double most = tolerance_of(recipe.name);
          const Results actual = computed(recipe, activation, bias, accumulation, Keep::all, ffn);
          EXPECT_LE(distance(actual.y, wanted.y), most) << recipe.name << " " << name;
          EXPECT_LE(distance(actual.dx, wanted.dx), most) << recipe.name << " " << name;
          ASSERT_EQ(actual.gradients.size(), wanted.gradients.size());
          for (std::size_t i = 0; i < wanted.gradients.size(); ++i)
            EXPECT_LE(distance(actual.gradients[i], wanted.gradients[i]), most)
                << recipe.name << " " << name << " " << i;
        }
      }
}

FormatId activation_of(const Recipe& recipe) { return recipe.treatment.activation.forward.value(); }

/// Whether some unit of this machine multiplies the codes of a recipe's activations.
bool multiplies_codes(const Recipe& recipe) {
  const auto& [forward, wgrad] = recipe.treatment.activation;
  return forward && gemm::native_pair(gemm::Form::forward, *forward, *recipe.treatment.weight.forward) &&
         gemm::native_pair(gemm::Form::weight_gradient, *recipe.treatment.gradient.wgrad, *wgrad);
}

// The columnwise codes of x that forward leaves behind are those that backward would make.
TEST(QuantizedLinear, KeepsTheCodesThatBackwardWouldMake) {
  constexpr std::int64_t in = 96, out = 160;
  for (const Recipe& recipe : recipes()) {
    if (!recipe.treatment.quantizes()) continue;
    Device device;
    ParamRegistry registry(TreatmentRules{recipe.treatment});
    const auto layer = [&] {
      const ParamRegistry::InBlock block(registry, 0);
      return Linear(registry, "linear", {in, out, 0.02, true, Accumulation::fused, MatrixName::other, {}});
    }();
    FlatParams params(device, registry, DType::bf16);
    for (const ParamId id : params.ids())
      params.set(id, uniform<double>(registry[id].member_elements(), 10 + static_cast<std::uint64_t>(id.value)));
    Arena arena = device.arena(Category::activations, 4 << 20);
    const Tensor x = on_device(device, {tokens, in}, uniform<bf16>(tokens * in, 1)),
                 dy = on_device(device, {tokens, out}, uniform<bf16>(tokens * out, 2)),
                 step = on_device(device, std::vector<std::uint64_t>{1});
    const Call call{{device.compute(), params, &params, arena, nullptr, nullptr, {7, step}}, 1, {}};
    enum class Kept { nothing, with_y, alone };
    const auto results = [&](Kept kept) {
      const Arena::Frame frame(arena);
      const Tensor y = poisoned(device, DType::bf16, dy.shape), dx = poisoned(device, DType::bf16, x.shape);
      const Linear::Saved saved = kept == Kept::nothing ? Linear::Saved() : layer.place(arena, tokens, Values::passing);
      EXPECT_EQ(static_cast<bool>(saved), kept != Kept::nothing) << recipe.name;
      EXPECT_EQ(static_cast<bool>(layer.place(arena, tokens, Values::kept)), multiplies_codes(recipe)) << recipe.name;
      params.restart();
      layer.forward(call, y, x, kept == Kept::with_y ? saved : Linear::Saved());
      if (kept == Kept::alone) layer.forward(call, {}, x, saved);
      layer.backward(call, dx, dy, x, saved);
      std::vector<std::vector<double>> all{download_real(device, y), download_real(device, dx)};
      for (const ParamId id : params.ids()) all.push_back(params.gradient(id));
      return all;
    };
    const auto wanted = results(Kept::nothing);
    for (const Kept kept : {Kept::with_y, Kept::alone}) {
      const auto actual = results(kept);
      for (std::size_t i = 0; i < wanted.size(); ++i)
        EXPECT_TRUE(same_bits(actual[i], wanted[i])) << recipe.name << " " << i;
    }
    EXPECT_EQ(static_cast<bool>(layer.place(arena, 7, Values::passing)), traits_of(activation_of(recipe)).ragged)
        << recipe.name;
  }
}

// An activation's output, read by its quantizer alone, outlives forward as codes. That of fp8_block, where its
// quantizer can compute it, is not stored at all.
TEST(QuantizedMlp, KeepsNoActivation) {
  const std::int64_t one = tokens * 288 * 2;
  for (const Recipe& recipe : recipes()) {
    const bool coded = recipe.treatment.quantizes();
    if (recipe.treatment.plain != DType::bf16) continue;
    EXPECT_EQ(coded && quantizes_in_one_pass(activation_of(recipe)), recipe.name == "fp8_block") << recipe.name;
    EXPECT_EQ(computed(recipe, Activation::gelu, true, Accumulation::fused).kept, coded ? one : 2 * one) << recipe.name;
    EXPECT_EQ(computed(recipe, Activation::swiglu, true, Accumulation::fused).kept, coded ? 2 * one : 3 * one)
        << recipe.name;
    const std::int64_t whole = tokens * 256 * 2;
    EXPECT_EQ(computed(recipe, Activation::swiglu, true, Accumulation::fused, Keep::all, 256).kept,
              coded ? 2 * whole : 3 * whole)
        << recipe.name;
  }
}

// The output of the norm before a layer is kept for backward unless the layer's codes take its place.
TEST(QuantizedMlp, IsGivenWhatBackwardDoesNotRead) {
  for (const Recipe& recipe : recipes())
    for (const Keep keep : {Keep::all, Keep::input}) {
      GptShape shape = tiny_shape();
      shape.hidden = 96;
      shape.ffn = 288;
      shape.compute = recipe.treatment.plain;
          Device device;
      ParamRegistry registry(TreatmentRules{recipe.treatment});
      const auto branch = [&] {
        const ParamRegistry::InBlock block(registry, 0);
        Recompute<NormLayer> norm(Keep::all, NormLayer(registry, "norm", shape));
        return Branch<Mlp>(std::move(norm), {keep, Mlp(registry, "mlp", shape)});
      }();
      Arena arena = device.arena(Category::activations, 16 << 20);
      const Arena::Frame frame(arena);
      const NormLayer::Saved norm = branch.place(arena, tokens).norm.value();
      EXPECT_EQ(static_cast<bool>(norm.y), keep == Keep::input || !recipe.treatment.quantizes()) << recipe.name;
      EXPECT_EQ(norm.rows(), tokens);
    }
}

}  // namespace
}  // namespace tessera::test
