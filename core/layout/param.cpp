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

Treatment treatment_of(const ParamSpec& spec, const TreatmentRules& rules) {
  if (is_counted(spec.role)) return {.plain = DType::f32};
  if (spec.role == Role::head) return rules.of(spec.block, MatrixName::head);
  return is_matrix(spec.role) && spec.block >= 0 ? rules.of(spec.block, spec.part) : rules.plain();
}

bool ParamRegistry::quantizes() const {
  return std::ranges::any_of(specs_, [](const ParamSpec& spec) { return spec.treatment.quantizes(); });
}

ParamId ParamRegistry::add(ParamSpec spec) {
  if (!names_.insert(spec.name).second) refuse("ParamRegistry", "a parameter was registered twice");
  if (!parts_fit(spec)) refuse("ParamRegistry", "the parts of a matrix have its rows between them");
  spec.block = block_;
  spec.module = module_;
  spec.treatment = treatment_of(spec, rules_);
  spec.format = spec.treatment.held();
  if (datasets_.empty() || canonical(datasets_.back()).name != spec.canonical.name) datasets_.emplace_back();
  specs_.push_back(std::move(spec));
  datasets_.back().params.push_back({size() - 1});
  return {size() - 1};
}

}  // namespace tessera
