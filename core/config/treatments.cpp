#include "core/config/treatments.hpp"

#include <algorithm>
#include <charconv>
#include <map>
#include <optional>
#include <string_view>
#include <utility>

#include "core/config/recipe_schedule.hpp"
#include "core/recipe/recipe.hpp"
#include "kernels/formats/registry.hpp"

namespace tessera {
namespace {

using formats::id_of;

/// The variants of a format for weights, and for activations and gradients; empty: bf16. A format that weights do not
/// have, which is refused, stands for the one to use.
struct Variants {
  std::string_view name;
  Treatment::Format weight, rows;
};
template <formats::Format W, formats::Format X> constexpr Variants of(std::string_view name) {
  return {name, id_of<W>, id_of<X>};
}
constexpr Variants variants[] = {
    {"bf16", {}, {}},
    of<formats::Fp8Block, formats::Fp8BlockOneD>("fp8_block"),
    of<formats::Fp8Block, formats::Fp8BlockOneD>("fp8_block_1d"),
    of<formats::Fp8Tensor, formats::Fp8Tensor>("fp8_tensor"),
    of<formats::Fp8Tensor, formats::Fp8TensorE5m2>("fp8_tensor_e5m2"),
    of<formats::Mxfp8, formats::Mxfp8>("mxfp8"),
    of<formats::Mxfp8Tiles, formats::Mxfp8>("mxfp8_2d"),
    of<formats::Mxfp8, formats::Mxfp8E5m2>("mxfp8_e5m2"),
    of<formats::Mxfp6E3m2, formats::Mxfp6E3m2>("mxfp6_e3m2"),
    of<formats::Mxfp6E3m2Tiles, formats::Mxfp6E3m2>("mxfp6_e3m2_2d"),
    of<formats::Mxfp6E2m3, formats::Mxfp6E2m3>("mxfp6_e2m3"),
    of<formats::Mxfp6E2m3Tiles, formats::Mxfp6E2m3>("mxfp6_e2m3_2d"),
    of<formats::Mxfp4, formats::Mxfp4>("mxfp4"),
    of<formats::Mxfp4Tiles, formats::Mxfp4>("mxfp4_2d"),
    of<formats::Nvfp4, formats::Nvfp4OneD>("nvfp4"),
    of<formats::Nvfp4, formats::Nvfp4OneD>("nvfp4_1d"),
    of<formats::Nvfp4FourOverSix, formats::Nvfp4FourOverSixOneD>("nvfp4_46"),
    of<formats::Nvfp4FourOverSix, formats::Nvfp4FourOverSixOneD>("nvfp4_46_1d"),
    of<formats::Nvfp4, formats::Nvfp4Row>("nvfp4_row"),
};

/// The variants of a name: of the table, or a described format for all factors; none where there is no such format.
std::optional<Variants> variants_of(const FactorFormat& format, const NamedFormats& described) {
  if (const auto known = std::ranges::find(variants, format.name, &Variants::name); known != std::end(variants))
    return *known;
  const auto own = described.find(format.name);
  if (own == described.end()) return std::nullopt;
  const formats::Description description = description_of(own->second);
  if (formats::flaw_of(description)) return Variants{own->first, {}, {}};
  const FormatId id = formats::id_of_description(description);
  return Variants{own->first, id, id};
}

/// Whether a factor can be rounded at random, and whether it can be rotated.
bool may_draw(const Treatment::Format& format) { return format && traits_of(*format).may_draw; }
bool may_rotate(const Treatment::Format& format) { return format && traits_of(*format).hadamard; }

/// Base `bf16` is that of precision.compute, where nothing is quantized.
Treatment treatment_of(const RecipeConfig& recipe, const PrecisionConfig& precision) {
  const bool fp32 = recipe.base == RecipeName::bf16 && precision.compute == Compute::fp32;
  Treatment t = recipe_named(fp32 ? "fp32" : name_of(recipe.base)).treatment;
  using Variant = Treatment::Format Variants::*;
  const auto set = [&](Treatment::Format& slot, const Derived<FactorFormat>& given, Variant variant) {
    if (!given.known()) return;
    const std::optional<Variants> found = variants_of(given.get(), precision.formats);
    slot = found ? (*found).*variant : std::nullopt;
  };
  set(t.weight.forward, recipe.weight.forward, &Variants::weight);
  set(t.weight.dgrad, recipe.weight.dgrad, &Variants::weight);
  set(t.activation.forward, recipe.activation.forward, &Variants::rows);
  set(t.activation.wgrad, recipe.activation.wgrad, &Variants::rows);
  set(t.gradient.dgrad, recipe.gradient.dgrad, &Variants::rows);
  set(t.gradient.wgrad, recipe.gradient.wgrad, &Variants::rows);
  const Derived<RoundingMode>& rounding = recipe.rounding.gradient;
  const bool drawn = may_draw(t.gradient.dgrad) || may_draw(t.gradient.wgrad);
  t.draws = drawn && (!rounding.known() || rounding == RoundingMode::stochastic);
  const bool rotated = may_rotate(t.activation.wgrad) && may_rotate(t.gradient.wgrad);
  t.rotates = rotated && (!recipe.hadamard.wgrad.known() || recipe.hadamard.wgrad.get());
  return t;
}

}  // namespace

std::vector<std::string> factor_formats() {
  std::vector<std::string> names;
  for (const Variants& one : variants) names.emplace_back(one.name);
  return names;
}

std::optional<BlockRange> blocks_named(std::string_view text, std::int64_t layers) {
  const auto number = [](std::string_view digits) -> std::optional<std::int64_t> {
    std::int64_t value = 0;
    const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), value);
    const bool whole = error == std::errc() && end == digits.data() + digits.size() && digits.front() != '-';
    return whole ? std::optional(value) : std::nullopt;
  };
  constexpr std::string_view first = "first ", last = "last ";
  if (text.starts_with(first)) {
    const auto n = number(text.substr(first.size()));
    return n && *n > 0 && *n <= layers ? std::optional(BlockRange{0, *n}) : std::nullopt;
  }
  if (text.starts_with(last)) {
    const auto n = number(text.substr(last.size()));
    return n && *n > 0 && *n <= layers ? std::optional(BlockRange{layers - *n, layers}) : std::nullopt;
  }
  const std::size_t dash = text.find('-');
  const auto from = number(text.substr(0, dash));
  const auto to = dash == std::string_view::npos ? from : number(text.substr(dash + 1));
  return from && to && *from <= *to && *to < layers ? std::optional(BlockRange{*from, *to + 1}) : std::nullopt;
}

namespace {

/// What a text that names no blocks stands for.
constexpr BlockRange nowhere{-2, -2};

std::vector<MatrixName> parts_named(const std::vector<ModuleName>& modules) {
  std::vector<MatrixName> parts;
  for (const ModuleName module : modules) switch (module) {
      case ModuleName::attention_qkv: parts.push_back(MatrixName::attention_qkv); break;
      case ModuleName::attention_out: parts.push_back(MatrixName::attention_out); break;
      case ModuleName::mlp_up: parts.push_back(MatrixName::mlp_up); break;
      case ModuleName::mlp_down: parts.push_back(MatrixName::mlp_down); break;
      case ModuleName::experts_up: parts.push_back(MatrixName::experts_up); break;
      case ModuleName::experts_down: parts.push_back(MatrixName::experts_down); break;
      case ModuleName::experts: parts.insert(parts.end(), {MatrixName::experts_up, MatrixName::experts_down}); break;
      case ModuleName::head: parts.push_back(MatrixName::head); break;
    }
  return parts;
}

}  // namespace

std::vector<RuledMatrix> ruled_matrices(const ModelConfig& model) {
  std::vector<RuledMatrix> all;
  for (std::int64_t block = 0; block < model.layers; ++block) {
    const bool experts = model.moe && model.moe->every > 0 && model.moe->blocks().contain(block);
    all.insert(all.end(), {{block, MatrixName::attention_qkv}, {block, MatrixName::attention_out}});
    if (experts) all.insert(all.end(), {{block, MatrixName::experts_up}, {block, MatrixName::experts_down}});
    if (!experts || model.moe->shared_ffn > 0)
      all.insert(all.end(), {{block, MatrixName::mlp_up}, {block, MatrixName::mlp_down}});
  }
  if (!model.tied_head) all.push_back({-1, MatrixName::head});
  return all;
}

TreatmentRules treatment_rules(const RunConfig& config) {
  const PrecisionConfig& precision = config.precision;
  const std::int64_t layers = config.model.layers;
  TreatmentRules rules{treatment_of(precision.recipe, precision)};
  for (const LayerRule& asked : precision.layers) {
    TreatmentRule rule{{}, parts_named(asked.modules), treatment_of(asked.recipe, precision)};
    for (const std::string& text : asked.blocks) rule.blocks.push_back(blocks_named(text, layers).value_or(nowhere));
    rules.list.push_back(std::move(rule));
  }
  if (precision.quantize_head) rules.list.push_back({{}, {MatrixName::head}, rules.standard});
  if (precision.bf16_first > 0) rules.list.push_back({{{0, precision.bf16_first}}, {}, rules.plain()});
  if (precision.bf16_last > 0) rules.list.push_back({{{layers - precision.bf16_last, layers}}, {}, rules.plain()});
  return rules;
}

namespace {

/// Blocks with a part, ascending; -1 for the head.
using Blocks = std::vector<std::int64_t>;

struct Alike {
  Treatment treatment;
  std::map<MatrixName, Blocks> parts;
};

/// The places of a model's matrices by treatment.
std::vector<Alike> alike(const RunConfig& config) {
  const TreatmentRules rules = treatment_rules(config);
  std::vector<Alike> all;
  for (const auto& [block, part] : ruled_matrices(config.model)) {
    const Treatment treatment = rules.of(block, part);
    auto found = std::ranges::find(all, treatment, &Alike::treatment);
    if (found == all.end()) found = all.insert(all.end(), {treatment, {}});
    found->parts[part].push_back(block);
  }
  return all;
}

/// "0-3, 6" of ascending numbers.
std::string ranges_text(const Blocks& blocks) {
  std::string text;
  for (std::size_t i = 0; i < blocks.size();) {
    std::size_t last = i;
    while (last + 1 < blocks.size() && blocks[last + 1] == blocks[last] + 1) ++last;
    text += (text.empty() ? "" : ", ") + std::to_string(blocks[i]);
    if (last > i) text += "-" + std::to_string(blocks[last]);
    i = last + 1;
  }
  return text;
}

/// The places in words, parts of the same blocks together.
std::string which_text(const std::map<MatrixName, Blocks>& parts) {
  std::vector<std::pair<Blocks, std::string>> by_blocks;
  for (const auto& [part, blocks] : parts) {
    auto found = std::ranges::find(by_blocks, blocks, &std::pair<Blocks, std::string>::first);
    if (found == by_blocks.end()) found = by_blocks.insert(by_blocks.end(), {blocks, ""});
    found->second += (found->second.empty() ? "" : ", ") + std::string(name_of(part));
  }
  std::string text;
  for (const auto& [blocks, names] : by_blocks) {
    text += (text.empty() ? "" : "; ") + names;
    if (blocks.front() >= 0) text += (blocks.size() == 1 ? " of block " : " of blocks ") + ranges_text(blocks);
  }
  return text;
}

}  // namespace

std::vector<TreatedAlike> treated_alike(const RunConfig& config) {
  std::vector<TreatedAlike> groups;
  for (const Alike& one : alike(config)) groups.push_back({one.treatment, which_text(one.parts)});
  return groups;
}

std::string recipe_text(const PrecisionConfig& precision) {
  const std::string layers = precision.layers.empty() ? "" : ", layers " + deck_text(precision.layers);
  return name_of(precision.recipe) + layers + schedule_text(precision);
}

bool quantizes(const RunConfig& config) {
  return std::ranges::any_of(alike(config), [](const Alike& one) { return one.treatment.quantizes(); });
}

std::vector<FormatId> coded_weights(const RunConfig& config) {
  std::vector<FormatId> formats;
  for (const Alike& one : alike(config))
    if (const auto codes = one.treatment.held().codes; codes && std::ranges::find(formats, *codes) == formats.end())
      formats.push_back(*codes);
  return formats;
}

}  // namespace tessera
