#pragma once
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "core/config/recipe_config.hpp"
#include "core/config/section.hpp"

namespace tessera {

/// Section `precision` of a deck.
struct PrecisionConfig {
  Compute compute = Compute::bf16;
  NamedFormats formats;
  RecipeConfig recipe;
  Derived<PrimaryWeights> primary_weights;
  bool fuse_wgrad = true;
  bool quantize_head = false;
  std::int64_t bf16_first = 0;
  std::int64_t bf16_last = 0;
  std::vector<LayerRule> layers;
  std::vector<ScheduledRecipe> schedule;
  std::int64_t statistics_every = 0;
  Derived<std::uint64_t> seed;

  template <class Self, class V> static void visit(Self& self, V& v) {
    using enum Restart;
    v.key("compute", self.compute, OneOf(), fixed, "Type of weights, activations and the residual stream");
    v.key("formats", self.formats, Structure(), told,
          "Number formats of the deck's own, by name: recipes name them as they do others");
    v.key("recipe", self.recipe, Structure(), told,
          "Formats in which every linear and expert layer multiplies: weights, activations and gradients are quantized "
          "for each product; bf16: none is");
    v.derived("primary_weights", self.primary_weights, OneOf(), may_change,
              "quantized where one format serves a weight's products, else bf16",
              "How weights that the recipe quantizes are held. quantized: as codes; bf16: each product quantizes its "
              "weight. Same bits");
    v.key("fuse_wgrad", self.fuse_wgrad, OneOf(), told, "Accumulate weight gradients inside the GEMM");
    v.key("quantize_head", self.quantize_head, OneOf(), told, "Quantize an untied output layer too");
    v.key("bf16_first", self.bf16_first, from_to(0, 10000), told, "First blocks whose matrices stay in bf16");
    v.key("bf16_last", self.bf16_last, from_to(0, 10000), told, "Last blocks whose matrices stay in bf16");
    v.key("layers", self.layers, Structure(), told,
          "Recipes of some matrices in place of `recipe`; of the rules that match a matrix the last one decides, and "
          "quantize_head, bf16_first and bf16_last are rules behind the list");
    v.key("schedule", self.schedule, Structure(), told,
          "Recipes that later steps take, in the order of their from_step. At each change the run saves, and goes on "
          "as if it had been stopped and resumed with the other recipe");
    v.key("statistics_every", self.statistics_every, from_to(0, 1e12), may_change,
          "Steps between statistics of what quantizers do to each matrix, in quantization.jsonl; 0: none. Same bits");
    v.derived("seed", self.seed, at_least(0), told, "run.seed", "Seed of the draws of stochastic rounding");
  }

  void derive(const RunConfig& config);
  void check(const RunConfig& config, std::vector<Finding>& found) const;
  void advise(const RunConfig& config, std::vector<Finding>& found) const;
  static std::span<const Effect> effects();
  static std::span<const OtherName> other_names();

  bool operator==(const PrecisionConfig&) const = default;
};

/// The run's recipe as a deck writes it, with its rules for layers.
std::string recipe_text(const PrecisionConfig& precision);

/// Why no weights are held as codes, where `key` asks for them.
std::string no_codes_text(const RunConfig& config, const std::string& key);

}  // namespace tessera
