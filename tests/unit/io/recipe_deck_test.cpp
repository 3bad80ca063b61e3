// Values with keys of their own in decks: precision.recipe and precision.layers.
#include <gtest/gtest.h>

#include <random>

#include "core/config/treatments.hpp"
#include "io/deck/deck.hpp"

namespace tessera {
namespace {

using List = std::vector<std::string>;

constexpr const char* small = R"(schema_version: 1
run: {name: small, steps: 10}
model: {layers: 4, hidden: 64, heads: 4, seq_len: 32}
data: {files: ["*.txt"]}
batch: {global: 8, micro: 2}
)";

Deck parsed(const std::string& precision, List& problems, const std::vector<Override>& overrides = {}) {
  Problems found;
  Deck deck = parse_deck(small + precision, "d.yaml", overrides, found);
  for (const Problem& problem : found.list()) problems.push_back(problem.text);
  return deck;
}
PrecisionConfig sound(const std::string& precision, const std::vector<Override>& overrides = {}) {
  List problems;
  const Deck deck = parsed(precision, problems, overrides);
  EXPECT_EQ(problems, List{}) << precision;
  return deck.config.precision;
}
List errors(const std::string& precision, const std::vector<Override>& overrides = {}) {
  List problems;
  parsed(precision, problems, overrides);
  return problems;
}

TEST(RecipeDeck, AWordIsShortForKeys) {
  EXPECT_EQ(sound("precision: {recipe: nvfp4}").recipe, RecipeConfig(RecipeName::nvfp4));
  EXPECT_EQ(sound("precision: {recipe: {base: nvfp4}}").recipe, RecipeConfig(RecipeName::nvfp4));
  RecipeConfig wanted(RecipeName::mxfp8);
  wanted.weight = {"nvfp4", "nvfp4"};
  wanted.gradient.dgrad = "bf16";
  wanted.rounding.gradient = RoundingMode::nearest;
  EXPECT_EQ(sound("precision: {recipe: {base: mxfp8, weight: nvfp4, gradient: {dgrad: bf16}, "
                  "rounding: {gradient: nearest}}}").recipe,
            wanted);
  EXPECT_EQ(name_of(wanted), "{base: mxfp8, weight: nvfp4, gradient: {dgrad: bf16}, rounding: {gradient: nearest}}");
  EXPECT_EQ(name_of(RecipeConfig(RecipeName::nvfp4)), "nvfp4");
}

// What --set gives a key of a recipe joins the recipe's name, and replaces its word.
TEST(RecipeDeck, SettingsReachIntoIt) {
  RecipeConfig wanted(RecipeName::nvfp4);
  wanted.activation = {"mxfp8", "bf16"};
  for (const char* deck : {"precision: {recipe: nvfp4}", "precision: {recipe: {base: nvfp4}}", ""}) {
    std::vector<Override> overrides{{"precision.recipe.activation", "mxfp8"},
                                    {"precision.recipe.activation.wgrad", "bf16"}};
    if (*deck == '\0') overrides.insert(overrides.begin(), {"precision.recipe", "nvfp4"});
    EXPECT_EQ(sound(deck, overrides).recipe, wanted) << deck;
  }
  EXPECT_EQ(sound("precision: {recipe: {base: nvfp4, weight: bf16}}", {{"precision.recipe", "mxfp8"}}).recipe,
            RecipeConfig(RecipeName::mxfp8));
  const PrecisionConfig listed = sound("precision: {layers: [{recipe: bf16}]}",
                                       {{"precision.layers", "[{blocks: [first 2], recipe: {weight: mxfp8}}]"}});
  ASSERT_EQ(listed.layers.size(), 1u);
  EXPECT_EQ(listed.layers[0].blocks, List{"first 2"});
}

/// A recipe and rules drawn from all that a deck may say.
PrecisionConfig drawn(std::mt19937& random) {
  const auto some = [&] { return random() % 2 == 0; };
  const std::vector<std::string> formats = factor_formats();
  const auto format = [&] { return std::string_view(formats[random() % std::size(formats)]); };
  const auto slot = [&](Derived<FactorFormat>& one) {
    if (some()) one = format();
  };
  const auto recipe = [&] {
    RecipeConfig r(Names<RecipeName>::table[random() % std::size(Names<RecipeName>::table)].value);
    for (auto* one : {&r.weight.forward, &r.weight.dgrad, &r.activation.forward, &r.activation.wgrad, &r.gradient.dgrad,
                      &r.gradient.wgrad})
      slot(*one);
    if (some()) r.weight.dgrad = r.weight.forward;
    if (some()) r.rounding.gradient = some() ? RoundingMode::nearest : RoundingMode::stochastic;
    if (some()) r.hadamard.wgrad = some();
    return r;
  };
  PrecisionConfig precision;
  precision.recipe = recipe();
  for (unsigned i = 0, n = random() % 3; i < n; ++i) {
    LayerRule rule;
    if (some()) rule.blocks = {"first 1", "2-3"};
    if (some()) rule.modules = {ModuleName::attention_qkv, ModuleName::mlp_down};
    rule.recipe = recipe();
    precision.layers.push_back(rule);
  }
  return precision;
}

TEST(RecipeDeck, TextsReadBackToTheSameValues) {
  std::mt19937 random(9);
  for (int i = 0; i < 300; ++i) {
    const PrecisionConfig wanted = drawn(random);
    const std::string text =
        "precision: {recipe: " + deck_text(wanted.recipe) + ", layers: " + deck_text(wanted.layers) + "}";
    List problems;  // contradictions among values are not what this is about
    const Deck deck = parsed(text, problems);
    EXPECT_EQ(deck.config.precision.recipe, wanted.recipe) << text;
    EXPECT_EQ(deck.config.precision.layers, wanted.layers) << text;
    Problems of_resolved;
    const Deck again = parse_deck(resolved_text(deck), "r.yaml", {}, of_resolved);
    EXPECT_EQ(again.config.precision, deck.config.precision) << resolved_text(deck);
  }
}

TEST(RecipeDeck, EachErrorHasItsPlace) {
  EXPECT_EQ(errors("precision: {recipe: {weight: mxfp9}, layers: [{modules: [mlp.left], recipe: bf16}]}").size(), 2u);
  // A word is refused as what the deck gives, once, whatever keys it stands for.
  const auto only = [](const List& list) { return list.size() == 1 ? list.front() : testing::PrintToString(list); };
  EXPECT_TRUE(only(errors("precision: {recipe: fp9}")).starts_with("d.yaml:6:21: precision.recipe: fp9 is none of"));
  EXPECT_TRUE(only(errors("precision: {recipe: {weight: fp9}}")).starts_with("d.yaml:6:30: precision.recipe.weight: "));
  EXPECT_TRUE(only(errors("", {{"precision.recipe", "fp9"}}))
                  .starts_with("--set precision.recipe=fp9: precision.recipe: "));
  EXPECT_TRUE(only(errors("precision: {recipe: nvfp4}", {{"precision.recipe.weight.dgrad", "fp9"}}))
                  .starts_with("--set precision.recipe.weight.dgrad=fp9: precision.recipe.weight.dgrad: "));
  const List list = errors(R"(precision:
  recipe: {activatoin: mxfp8, gradient: [mxfp8]}
  layers:
    - {blocks: [first 1]}
    - bf16
    - {blocks: [first 9, 2-1, x], recipe: mxfp8}
)");
  const List wanted{"d.yaml:7:12: precision.recipe.activatoin: unknown key",
                    "d.yaml:7:", "d.yaml:9:7: precision.layers[0].recipe: missing: a recipe is needed",
                    "d.yaml:10:7: precision.layers[1]: bf16 is not a rule, allowed {blocks"};
  for (const std::string& text : wanted)
    EXPECT_TRUE(std::ranges::any_of(list, [&](const std::string& one) { return one.starts_with(text); }))
        << text << "\n" << testing::PrintToString(list);
  EXPECT_FALSE(errors("precision: {layers: {recipe: bf16}}").empty());
  EXPECT_FALSE(errors("precision: {recipe: {rounding: stochastic}}").empty());
}

TEST(RecipeDeck, RefusalsOfValuesNameTheirLine) {
  const List list = errors(R"(precision:
  recipe:
    base: mxfp8
    weight: {forward: fp8_tensor_e5m2, dgrad: nvfp4_1d}
    rounding: {weight: stochastic, activation: stochastic, gradient: stochastic}
    hadamard: {forward: true, dgrad: true, wgrad: true}
  layers:
    - {blocks: [first 5, '4'], recipe: bf16}
    - {modules: [experts], recipe: mxfp8}
    - {modules: [head], blocks: [first 1], recipe: {weight: fp8_block_1d}}
)");
  const List wanted{
      "d.yaml:9:23: precision.recipe.weight.forward: fp8_tensor_e5m2 is E5M2",
      "d.yaml:9:47: precision.recipe.weight.dgrad: nvfp4_1d has blocks of rows",
      "d.yaml:10:24: precision.recipe.rounding.weight: is stochastic",
      "d.yaml:10:48: precision.recipe.rounding.activation: is stochastic",
      "d.yaml:10:70: precision.recipe.rounding.gradient: is stochastic, and gradients are in mxfp8",
      "d.yaml:11:25: precision.recipe.hadamard.forward: is true",
      "d.yaml:11:38: precision.recipe.hadamard.dgrad: is true",
      "d.yaml:11:51: precision.recipe.hadamard.wgrad: is true, and its product multiplies x in mxfp8 and dy in mxfp8",
      "d.yaml:13:16: precision.layers[0].blocks: \"first 5\" names no blocks",
      "d.yaml:13:16: precision.layers[0].blocks: \"4\" names no blocks",
      "d.yaml:14:7: precision.layers[1]: matches no matrix",
      "d.yaml:15:61: precision.layers[2].recipe.weight.forward: fp8_block_1d has blocks of rows",
      "d.yaml:15:7: precision.layers[2]: matches no matrix, and the head is in no block",
  };
  for (const std::string& text : wanted)
    EXPECT_TRUE(std::ranges::any_of(list, [&](const std::string& one) { return one.starts_with(text); }))
        << text << "\n" << testing::PrintToString(list);
  EXPECT_EQ(list.size(), wanted.size()) << testing::PrintToString(list);
}

}  // namespace
}  // namespace tessera
