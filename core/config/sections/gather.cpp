#include "core/config/sections/gather.hpp"

#include <fmt/format.h>

#include <algorithm>

#include "core/config/config.hpp"

namespace tessera {

void GatherConfig::check(const RunConfig& config, std::vector<Finding>& found) const {
  if (config.sharding != Sharding::full && granularity != GatherGranularity::automatic)
    found.push_back({{"gather.granularity", "sharding"},
                     fmt::format("is {}, and weights are gathered for use only where sharding is full: use auto, or "
                                 "sharding full",
                                 name_of(granularity))});
}

bool gathers_modules(const RunConfig& config) {
  const GatherGranularity granularity = config.gather.granularity;
  if (granularity != GatherGranularity::automatic) return granularity == GatherGranularity::module;
  // Codes are made again without a weight.
  const auto reads_weights = [](RecomputeModule module) {
    return module != RecomputeModule::codes && module != RecomputeModule::activation;
  };
  return ships_both_copies(config) && config.recompute.mode == RecomputeMode::selective &&
         std::ranges::any_of(config.recompute.modules.get(), reads_weights);
}

}  // namespace tessera
