#include "core/layout/param.hpp"

#include <algorithm>

namespace tessera {
namespace {

bool parts_fit(const ParamSpec& spec) {
  std::int64_t rows = 0;
  for (int i = 0; i < spec.parts.rank(); ++i) rows += spec.parts[i];
  return spec.parts.rank() == 0 || (spec.member.rank() == 2 && rows == spec.member[0]);
}

}  // namespace

std::int64_t ParamSpec::real_elements() const {
  // A parameter holds whole canonical members, except for the vocabulary's padding: last rows that exist in memory
  // only.
  const std::int64_t canonical_left = canonical.shape.elements() - canonical.first;
  return std::min(member_elements(), canonical_left);
}

WeightFormat format_of(const ParamSpec& spec, const FormatRules& rules) {
  if (is_counted(spec.role)) return {DType::f32, {}};
  const bool in_blocks = rules.first_block <= spec.block && spec.block < rules.end_block;
  const bool quantized = (is_matrix(spec.role) && in_blocks) || (spec.role == Role::head && rules.head);
  return quantized ? rules.weight : WeightFormat{rules.weight.plain, {}};
}

ParamId ParamRegistry::add(ParamSpec spec) {
  if (!names_.insert(spec.name).second) refuse("ParamRegistry", "a parameter was registered twice");
  if (!parts_fit(spec)) refuse("ParamRegistry", "the parts of a matrix have its rows between them");
  spec.block = block_;
  spec.module = module_;
  spec.format = format_of(spec, rules_);
  if (datasets_.empty() || canonical(datasets_.back()).name != spec.canonical.name) datasets_.emplace_back();
  specs_.push_back(std::move(spec));
  datasets_.back().params.push_back({size() - 1});
  return {size() - 1};
}

}  // namespace tessera
