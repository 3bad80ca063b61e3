#pragma once
#include <array>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "core/config/choices.hpp"
#include "core/config/format_config.hpp"
#include "core/config/rule.hpp"
#include "core/config/structure.hpp"

/// Values of precision.recipe, layers and schedule: in which formats matrices are multiplied.
namespace tessera {

/// A factor's format by its name: bf16, one of factor_formats(), or one of precision.formats. Of a family the variant
/// for the factor is taken: blocks of two dimensions for weights, of one for activations and gradients.
struct FactorFormat {
  std::string name;

  FactorFormat() = default;
  FactorFormat(const char* text) : name(text) {}
  FactorFormat(std::string_view text) : name(text) {}
  bool operator==(const FactorFormat&) const = default;
};
/// The names that all decks know.
std::vector<std::string> factor_formats();
inline std::string deck_text(const FactorFormat& format) { return format.name; }
template <> struct TypeName<FactorFormat> { static constexpr const char* text = "a choice"; };
template <> inline std::vector<std::string> choices_of<FactorFormat>() {
  std::vector<std::string> names = factor_formats();
  names.emplace_back("a name of formats");
  return names;
}

enum class RoundingMode { nearest, stochastic };
template <> struct Names<RoundingMode> {
  static constexpr Name<RoundingMode> table[] = {{RoundingMode::nearest, "nearest"},
                                                 {RoundingMode::stochastic, "stochastic"}};
};

/// Matrices by their place in a block, or the head; `experts` is both of theirs.
enum class ModuleName {
  attention_qkv,
  attention_out,
  mlp_up,
  mlp_down,
  experts_up,
  experts_down,
  experts,
  head
};
template <> struct Names<ModuleName> {
  static constexpr Name<ModuleName> table[] = {{ModuleName::attention_qkv, "attention.qkv"},
                                               {ModuleName::attention_out, "attention.out"},
                                               {ModuleName::mlp_up, "mlp.up"},
                                               {ModuleName::mlp_down, "mlp.down"},
                                               {ModuleName::experts_up, "experts.up"},
                                               {ModuleName::experts_down, "experts.down"},
                                               {ModuleName::experts, "experts"},
                                               {ModuleName::head, "head"}};
};

struct WeightSlots {
  Derived<FactorFormat> forward, dgrad;

  static constexpr const char* type_name = "a format of weights";
  static constexpr const char* allowed = "a format, bf16, or {forward: ..., dgrad: ...}";
  static constexpr std::string_view short_forms[] = {"forward", "dgrad"};
  template <class Self, class V> static void visit(Self& self, V& v) {
    using enum Restart;
    v.derived("forward", self.forward, OneOf(), may_change, "of base", "Format of the weight in y = x W^T");
    v.derived("dgrad", self.dgrad, OneOf(), may_change, "of base", "Format of the weight in dx = dy W");
  }
  bool operator==(const WeightSlots&) const = default;
};

struct ActivationSlots {
  Derived<FactorFormat> forward, wgrad;

  static constexpr const char* type_name = "a format of activations";
  static constexpr const char* allowed = "a format, bf16, or {forward: ..., wgrad: ...}";
  static constexpr std::string_view short_forms[] = {"forward", "wgrad"};
  template <class Self, class V> static void visit(Self& self, V& v) {
    using enum Restart;
    v.derived("forward", self.forward, OneOf(), may_change, "of base", "Format of x in y = x W^T");
    v.derived("wgrad", self.wgrad, OneOf(), may_change, "of base", "Format of x in dW = dy^T x");
  }
  bool operator==(const ActivationSlots&) const = default;
};

struct GradientSlots {
  Derived<FactorFormat> dgrad, wgrad;

  static constexpr const char* type_name = "a format of gradients";
  static constexpr const char* allowed = "a format, bf16, or {dgrad: ..., wgrad: ...}";
  static constexpr std::string_view short_forms[] = {"dgrad", "wgrad"};
  template <class Self, class V> static void visit(Self& self, V& v) {
    using enum Restart;
    v.derived("dgrad", self.dgrad, OneOf(), may_change, "of base", "Format of dy in dx = dy W");
    v.derived("wgrad", self.wgrad, OneOf(), may_change, "of base", "Format of dy in dW = dy^T x");
  }
  bool operator==(const GradientSlots&) const = default;
};

struct RoundingConfig {
  RoundingMode weight = RoundingMode::nearest, activation = RoundingMode::nearest;
  Derived<RoundingMode> gradient;

  static constexpr const char* type_name = "roundings";
  static constexpr const char* allowed = "{gradient: nearest | stochastic}";
  static constexpr std::array<std::string_view, 0> short_forms = {};
  template <class Self, class V> static void visit(Self& self, V& v) {
    using enum Restart;
    v.key("weight", self.weight, OneOf(), may_change, "Rounding of weights: nearest, since a weight is no draw");
    v.key("activation", self.activation, OneOf(), may_change,
          "Rounding of activations: nearest, since evaluations draw nothing");
    v.derived("gradient", self.gradient, OneOf(), may_change, "stochastic for nvfp4 and nvfp4_row, else nearest",
              "Rounding of gradients; stochastic: by random numbers, in nvfp4 and nvfp4_row");
  }
  bool operator==(const RoundingConfig&) const = default;
};

struct HadamardConfig {
  bool forward = false, dgrad = false;
  Derived<bool> wgrad;

  static constexpr const char* type_name = "rotations";
  static constexpr const char* allowed = "{wgrad: true | false}";
  static constexpr std::array<std::string_view, 0> short_forms = {};
  template <class Self, class V> static void visit(Self& self, V& v) {
    using enum Restart;
    v.key("forward", self.forward, OneOf(), may_change, "Rotate the factors of forward: false, since weights are not");
    v.key("dgrad", self.dgrad, OneOf(), may_change, "Rotate the factors of dgrad: false, since weights are not");
    v.derived("wgrad", self.wgrad, OneOf(), may_change, "true where both are nvfp4, nvfp4_row or nvfp4_46, else false",
              "Rotate x and dy of dW = dy^T x by Hadamard matrices of 16 rows before they are quantized");
  }
  bool operator==(const HadamardConfig&) const = default;
};

/// A recipe: that of a name, and what differs from it.
struct RecipeConfig {
  RecipeName base = RecipeName::bf16;
  WeightSlots weight;
  ActivationSlots activation;
  GradientSlots gradient;
  RoundingConfig rounding;
  HadamardConfig hadamard;

  RecipeConfig() = default;
  RecipeConfig(RecipeName name) : base(name) {}  // a name is a recipe

  static constexpr const char* type_name = "a recipe";
  static constexpr const char* allowed =
      "bf16 | fp8_block | fp8_tensor | mxfp8 | mxfp8_2d | mxfp6_e3m2 | mxfp6_e3m2_2d | mxfp6_e2m3 | mxfp6_e2m3_2d | "
      "mxfp4 | mxfp4_2d | nvfp4 | nvfp4_46, or {base: ..., weight: ..., activation: ..., gradient: ..., rounding: "
      "..., hadamard: ...}";
  static constexpr std::string_view short_forms[] = {"base"};
  template <class Self, class V> static void visit(Self& self, V& v) {
    using enum Restart;
    v.key("base", self.base, OneOf(), may_change, "The recipe that gives what is left out below");
    v.key("weight", self.weight, Structure(), may_change,
          "Format of weights. One format for both products: weights can be held as its codes; else they are held in "
          "bf16, and each product quantizes its own copy");
    v.key("activation", self.activation, Structure(), may_change, "Format of activations");
    v.key("gradient", self.gradient, Structure(), may_change, "Format of gradients of outputs");
    v.key("rounding", self.rounding, Structure(), may_change, "Rounding to the format's numbers");
    v.key("hadamard", self.hadamard, Structure(), may_change, "Random Hadamard rotation of a product's factors");
  }
  bool operator==(const RecipeConfig&) const = default;
};

/// The recipe's name, or {base: ..., ...}.
inline std::string name_of(const RecipeConfig& recipe) { return deck_text(recipe); }

/// The recipe of some matrices.
struct LayerRule {
  std::vector<std::string> blocks;
  std::vector<ModuleName> modules;
  RecipeConfig recipe;

  static constexpr const char* type_name = "a rule";
  static constexpr const char* allowed = "{blocks: [...], modules: [...], recipe: ...}";
  static constexpr std::array<std::string_view, 0> short_forms = {};
  template <class Self, class V> static void visit(Self& self, V& v) {
    using enum Restart;
    v.key("blocks", self.blocks, Text::line_or_empty, may_change,
          "Blocks, counted from 0: first N, last N, A, or A-B; none: all, and the head");
    v.key("modules", self.modules, OneOf(), may_change,
          "Matrices of these blocks; gate_up is mlp.up, and the shared expert's are mlp's; none: all but the head");
    v.required("recipe", self.recipe, Structure(), may_change, "Their recipe, written as precision.recipe");
  }
  bool operator==(const LayerRule&) const = default;
};

/// The recipe from a step on.
struct ScheduledRecipe {
  std::int64_t from_step = 2;
  RecipeConfig recipe;
  std::vector<LayerRule> layers;

  static constexpr const char* type_name = "a change of recipe";
  static constexpr const char* allowed = "{from_step: ..., recipe: ..., layers: [...]}";
  static constexpr std::array<std::string_view, 0> short_forms = {};
  template <class Self, class V> static void visit(Self& self, V& v) {
    using enum Restart;
    v.required("from_step", self.from_step, from_to(2, 1'000'000'000'000), may_change, "The first step of the recipe");
    v.required("recipe", self.recipe, Structure(), may_change, "The recipe from then on, written as precision.recipe");
    v.key("layers", self.layers, Structure(), may_change,
          "Recipes of some matrices from then on, in place of precision.layers; none: the rules before stay");
  }
  bool operator==(const ScheduledRecipe&) const = default;
};

}  // namespace tessera
