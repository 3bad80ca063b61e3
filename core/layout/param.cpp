#include "core/layout/param.hpp"

#include <algorithm>

namespace tessera {

std::int64_t ParamSpec::real_elements() const {
  // A parameter is a whole number of canonical members; only the vocabulary's last rows exist in memory alone.
  const std::int64_t canonical_left = canonical.shape.elements() - canonical.first;
  return std::min(member_elements(), canonical_left);
}

ParamId ParamRegistry::add(ParamSpec spec) {
  if (!names_.insert(spec.name).second) refuse("ParamRegistry", "a parameter was registered twice");
  specs_.push_back(std::move(spec));
  return {size() - 1};
}

}  // namespace tessera
