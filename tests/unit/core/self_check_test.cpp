// A start finds out whether units that nobody has run are right.
#include "core/step/self_check.hpp"

#include <gtest/gtest.h>

#include <span>

#include "kernels/base/runtime.hpp"
#include "tests/support/software_units.hpp"

namespace tessera {
namespace {

using gemm::Form;
using gemm::Kind;
using gemm::Product;
using test::Mistake;
using test::SoftwareUnits;

FormatId named(const char* name) { return find_format(name).value(); }

/// Products of a run whose linear layers have a bias and whose gradients are accumulated.
gemm::Routes routes_of(const char* weight, const char* value, const char* slope) {
  gemm::Routes routes;
  Product p{.type = DType::bf16, .sum = DType::bf16, .form = Form::forward, .m = 64, .n = 96, .k = 160};
  p.scaled = traits_of(named(value)).tensor_amax;
  const auto add = [&] { routes.of.emplace(p, gemm::route_of(p)); };
  p.a = named(value), p.b = named(weight);
  add();
  p.epilogue = gemm::Epilogue::bias;
  add();
  p.epilogue = gemm::Epilogue::bias_gelu;
  add();
  p.epilogue = gemm::Epilogue::none;
  p.form = Form::input_gradient;
  p.a = named(slope);
  add();
  p.form = Form::weight_gradient;
  p.b = named(value);
  p.sum = DType::f32;
  add();
  p.beta = 1;
  add();
  return routes;
}
struct Recipe {
  const char *weight, *value, *slope;
};
constexpr Recipe recipes[] = {{"mxfp8", "mxfp8", "mxfp8"},
                              {"mxfp8_2d", "mxfp8", "mxfp8"},
                              {"nvfp4", "nvfp4_1d", "nvfp4_1d"},
                              {"fp8_tensor", "fp8_tensor", "fp8_tensor_e5m2"},
                              {"fp8_block", "fp8_block_1d", "fp8_block_1d"}};

struct SelfCheck : ::testing::Test {
  void SetUp() override {
    if (Runtime::back_end() == "Cuda") GTEST_SKIP() << "the units of this test read the host's memory";
  }
  CheckedKinds found(const Recipe& r) {
    Device device;
    return check_units(device, routes_of(r.weight, r.value, r.slope));
  }
};

TEST_F(SelfCheck, RightUnitsPassWithEveryRecipe) {
  SoftwareUnits units;
  for (const Recipe& recipe : recipes) {
    const CheckedKinds kinds = found(recipe);
    EXPECT_EQ(kinds.size(), 3u) << recipe.weight;
    for (const auto& [kind, checked] : kinds) EXPECT_EQ(checked.fault, "") << text_of(kind) << " " << checked.apart;
  }
  EXPECT_GT(units.products, 0);
}

/// Whether units with a mistake can compute a kind of product rightly nevertheless.
bool harmless(Mistake mistake, const Kind& kind) {
  const FormatTraits a = traits_of(kind.a);
  const bool blocks = a.name != "fp8_tensor" && a.name != "fp8_tensor_e5m2";
  switch (mistake) {
    case Mistake::scales_in_rows:
    case Mistake::turned_tiles:
    case Mistake::one_scale: return !blocks;
    case Mistake::no_alpha: return !a.tensor_amax;
    case Mistake::swapped_nibbles: return a.bits != 4;
    case Mistake::forgets_beta: return kind.form != Form::weight_gradient;
    case Mistake::forgets_bias: return kind.form != Form::forward;
    default: return false;
  }
}

TEST_F(SelfCheck, EveryMistakeIsFoundInEveryKind) {
  for (const Mistake mistake : test::mistakes)
    for (const Recipe& recipe : std::span(recipes).subspan(1)) {
      SoftwareUnits units(mistake);
      const CheckedKinds kinds = found(recipe);
      EXPECT_EQ(kinds.size(), 3u);
      for (const auto& [kind, checked] : kinds)
        EXPECT_EQ(checked.fault.empty(), harmless(mistake, kind))
            << static_cast<int>(mistake) << " " << text_of(kind) << " " << checked.apart;
    }
}

TEST_F(SelfCheck, WhatIsGivenUpIsDecoded) {
  SoftwareUnits units;
  const Kind forward{Form::forward, named("mxfp8"), named("mxfp8_2d")};
  EXPECT_TRUE(gemm::native_pair(forward.form, forward.a, forward.b));
  gemm::give_up(forward);
  EXPECT_FALSE(gemm::native_pair(forward.form, forward.a, forward.b));
  EXPECT_TRUE(gemm::native_pair(Form::input_gradient, forward.a, forward.b));
  EXPECT_EQ(found({"mxfp8_2d", "mxfp8", "mxfp8"}).count(forward), 0u);
}

TEST_F(SelfCheck, MachinesWithoutSuchUnitsCheckNothing) {
  for (const Recipe& recipe : recipes) EXPECT_TRUE(found(recipe).empty());
}

}  // namespace
}  // namespace tessera
