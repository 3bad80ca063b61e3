#include "core/recipe/treatment.hpp"

#include <algorithm>

#include "kernels/formats/registry.hpp"

namespace tessera {
namespace {

/// What must divide the two dimensions of a copy: the one that its product sums over, and the other.
struct Unit {
  std::int64_t summed = 1, other = 1;
};
Unit unit_of(const Treatment::Format& format) {
  if (!format) return {};
  const FormatTraits traits = traits_of(*format);
  constexpr std::int64_t whole_products = 16;  // units that multiply codes sum over so many at a time
  if (traits.ragged) return {whole_products, 1};
  return {traits.block.columns, traits.block.rows};
}

/// An expert's rows begin at whole blocks, so that no block has rows of two experts.
std::int64_t expert_unit(const Treatment::Format& format) {
  if (!format) return 1;
  const FormatTraits traits = traits_of(*format);
  return traits.scaled ? traits.block.columns : unit_of(format).summed;
}

std::string text_of(const Treatment::Format& one, const Treatment::Format& other) {
  const auto name = [](const Treatment::Format& format) {
    return std::string(format ? traits_of(*format).name : std::string_view("bf16"));
  };
  return one == other ? name(one) : name(one) + " / " + name(other);
}

}  // namespace

std::string text_of(const Treatment::Weight& slots) { return text_of(slots.forward, slots.dgrad); }
std::string text_of(const Treatment::Activation& slots) { return text_of(slots.forward, slots.wgrad); }
std::string text_of(const Treatment::Gradient& slots) { return text_of(slots.dgrad, slots.wgrad); }

std::string text_of(const Treatment& treatment) {
  if (!treatment.quantizes()) return std::string(name_of(WeightFormat{treatment.plain, {}}));
  std::string text = "weight " + text_of(treatment.weight) + ", x " + text_of(treatment.activation) + ", dy " +
                     text_of(treatment.gradient);
  if (treatment.draws) text += ", dy rounded at random";
  if (treatment.rotates) text += ", x and dy of the weight gradient rotated";
  return text;
}

std::string_view name_of(MatrixName part) {
  constexpr std::string_view names[] = {"other",    "attention.qkv", "attention.out", "mlp.up",
                                        "mlp.down", "experts.up",    "experts.down",  "head"};
  return names[static_cast<int>(part)];
}

std::string_view name_of(const WeightFormat& format) {
  if (format.codes) return traits_of(*format.codes).name;
  return format.plain == DType::f32 ? "fp32" : name_of(format.plain);
}

std::int64_t data_bytes(const WeightFormat& format, ElementIndex elements) {
  return format.codes ? formats::data_bytes(*format.codes, elements.value) : elements.value * size_of(format.plain);
}

bool Treatment::quantizes() const {
  return std::ranges::any_of(slots(), [](const Format& slot) { return slot.has_value(); });
}

WeightFormat Treatment::held() const {
  return {plain, weight.forward == weight.dgrad ? weight.forward : std::nullopt};
}

// Units are powers of two: the largest is a multiple of all.
Multiples multiples_of(const Treatment& t) {
  const Unit wf = unit_of(t.weight.forward), wd = unit_of(t.weight.dgrad);
  const Unit xf = unit_of(t.activation.forward), xw = unit_of(t.activation.wgrad);
  const Unit gd = unit_of(t.gradient.dgrad), gw = unit_of(t.gradient.wgrad);
  Multiples all;
  all.out = std::max({wf.other, wd.summed, gd.summed, gw.other});
  all.in = std::max({wf.summed, wd.other, xf.summed, xw.other});
  all.rows = std::max({xf.other, xw.summed, gd.other, gw.summed});
  for (const Treatment::Format& format :
       {t.activation.forward, t.activation.wgrad, t.gradient.dgrad, t.gradient.wgrad})
    all.expert_rows = std::max(all.expert_rows, expert_unit(format));
  return all;
}

bool TreatmentRule::matches(std::int64_t block, MatrixName part) const {
  const auto contains = [&](const BlockRange& range) { return range.contains(block); };
  if (!blocks.empty() && std::ranges::none_of(blocks, contains)) return false;
  return parts.empty() ? part != MatrixName::head : std::ranges::find(parts, part) != parts.end();
}

Treatment TreatmentRules::of(std::int64_t block, MatrixName part) const {
  const int rule = decider(block, part);
  if (rule >= 0) return list[static_cast<std::size_t>(rule)].treatment;
  return part == MatrixName::head ? plain() : standard;
}

int TreatmentRules::decider(std::int64_t block, MatrixName part) const {
  for (std::size_t i = list.size(); i > 0; --i)  // mutation: rules_reversed
    if (list[i - 1].matches(block, part)) return static_cast<int>(i) - 1;
  return -1;
}

}  // namespace tessera
